"""Listings in the documents are those of the source."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from raceway.algorithms import algorithm_names

ROOT = Path(__file__).parents[2]
NAMES = [name for name in algorithm_names() if (ROOT / "raceway" / "algorithms" / f"{name}.py").exists()]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("listings", ROOT / "scripts" / "listings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


listings = load_script()


@pytest.mark.parametrize("path", listings.DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_have_the_listings_of_the_source(path: Path) -> None:
    text = path.read_text()
    assert listings.updated(text, path) == text, "run `make docs`"


@pytest.mark.parametrize("path", listings.DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_table_ends_with_an_empty_line(path: Path) -> None:
    """Else the text after it is shown as one of its rows."""
    assert re.findall(r"^\|.*\n(?!\||\n)(.+)", path.read_text(), re.MULTILINE) == []


@pytest.mark.parametrize("text", [".gather_sync()", "one batch, advantages standardised", "0.2 | Clipping range"])
def test_listings_that_differ_are_replaced(text: str) -> None:
    path = ROOT / "docs" / "algorithms" / "ppo.md"
    page = path.read_text()
    assert page.count(text) == 1
    assert listings.updated(page.replace(text, "another text"), path) == page


def test_every_plan_in_a_document_is_taken_from_the_source() -> None:
    copies = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in listings.DOCUMENTS
        for before, name in re.findall(r"^(.*)\n```python\ndef (\w+)\(", path.read_text(), re.MULTILINE)
        if name in (*NAMES, "loss") and not before.startswith("<!-- source: ")
    ]
    assert copies == []


def test_every_algorithm_has_a_page_with_its_flow_and_plan() -> None:
    for name in NAMES:
        text = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
        assert f"<!-- flow: raceway/algorithms/{name}.py -->" in text
        assert f"<!-- source: raceway/algorithms/{name}.py {name} -->" in text
