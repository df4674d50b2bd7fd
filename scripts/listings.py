"""Copy source into the documents: plans, diagrams of flows, tables of settings.

A marker in a document names what follows it:

    <!-- source: FILE NAME ... -->    a block of code: these functions, without decorators and docstrings
    <!-- flow: FILE -->               an indented block: the diagram in the module's docstring
    <!-- settings: ALGORITHM -->      a table: the settings of an algorithm, with defaults and help
    <!-- columns: table|sizes -->     a table: the columns of batches, or the sizes in their shapes
    <!-- catalogue: all -->           a table: all algorithms, and the returns of benchmarks/results/learning.json

`make docs` runs it. `tests/docs/test_listings.py` fails if a document is not what it would write.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_MARKER = re.compile(r"<!-- (source|flow|settings|columns|catalogue): (.*) -->\n")
_BLOCKS = {
    "source": re.compile(r"```python\n.*?^```\n", re.DOTALL | re.MULTILINE),
    "flow": re.compile(r"\n(?:    .*\n|\n(?=    ))*"),
    "settings": re.compile(r"\n(?:\|.*\n)*"),
    "columns": re.compile(r"\n(?:\|.*\n)*"),
    "catalogue": re.compile(r"\n(?:\|.*\n)*"),
}
_COMMON_SETTINGS = ("lr", "gamma", "max_grad_norm", "adam_epsilon", "device")


def functions(file: str, *names: str) -> str:
    """Return the source of functions, without decorators and docstrings."""
    text = (ROOT / file).read_text()
    nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in names if name not in nodes]
    if missing:
        raise SystemExit(f"{file} has no function {missing[0]!r}; it has {', '.join(nodes)}")
    return "\n\n\n".join(_without_docstring(text.splitlines(), nodes[name]) for name in names)


def _without_docstring(lines: list[str], node: ast.FunctionDef) -> str:
    first, last = node.lineno - 1, node.end_lineno
    if ast.get_docstring(node) is None:
        return "\n".join(lines[first:last])
    docstring = node.body[0]
    return "\n".join(lines[first : docstring.lineno - 1] + lines[docstring.end_lineno : last])


def diagram(file: str) -> str:
    """Return the indented block in a module's docstring."""
    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""
    block = re.search(r"(?:^    .*\n|\n(?=    ))+", docstring, re.MULTILINE)
    if block is None:
        raise SystemExit(f"the docstring of {file} has no indented block")
    return block[0].strip("\n")


def settings_table(name: str) -> str:
    """Return a table of the settings of an algorithm: those that only it has, or with a default of its own."""
    from raceway.algorithms import find_algorithm
    from raceway.algorithms.config import AlgorithmConfig
    from raceway.commands.config_options import field_docs

    config = find_algorithm(name).config
    common = {field.name: field.default for field in dataclasses.fields(AlgorithmConfig)}
    texts = field_docs(config)
    rows = ["| setting | default | |", "|---|---|---|"]
    for field in dataclasses.fields(config):
        if field.name in _COMMON_SETTINGS or field.name not in common or field.default != common[field.name]:
            text = texts[field.name].replace("|", "\\|")
            rows.append(f"| `--{field.name.replace('_', '-')}` | {field.default} | {text} |")
    return "\n".join(rows)


def columns_table(which: str) -> str:
    """Return the table of the columns of batches, or of the sizes in their shapes."""
    from raceway.rl.batch import COLUMNS, SIZES, Layout

    if which == "sizes":
        return "\n".join(["| size | |", "|---|---|", *(f"| {size} | {text} |" for size, text in SIZES.items())])
    rows = [
        f"| column | | {' | '.join(Layout)} | written by | read by |",
        "|---|---|" + "---|" * len(Layout) + "---|---|",
    ]
    for column in COLUMNS:
        shapes = " | ".join(f"`{column.shapes[layout]}`" if layout in column.shapes else "" for layout in Layout)
        rows.append(f"| `{column.name}` | {column.meaning} | {shapes} | {column.written_by} | {column.read_by} |")
    return "\n".join(rows)


def catalogue_table(which: str) -> str:
    """Return the table of all algorithms of the package."""
    from raceway.algorithms import find_algorithm

    names = [path.stem for path in sorted((ROOT / "docs" / "algorithms").glob("*.md")) if path.stem != "index"]
    rows = ["| algorithm | actions | learns from | plan, resume | memory | several agents | measured (threshold) |"]
    rows.append("|---|---|---|---|---|---|---|")
    for name in names:
        algorithm = find_algorithm(name)
        source = (ROOT / "raceway" / "algorithms" / f"{name}.py").read_text()
        is_async = ".gather_async(" in source or "union_async(" in source
        origin, shares_rollouts = _learns_from(algorithm, is_async)
        shares_rollouts &= not algorithm.needs_tasks and "all_reduce" not in source
        plan = "asynchronous" if is_async else "synchronous, exact"
        cells = [f"[{name}]({name}.md)", ", ".join(algorithm.actions), origin, plan]
        cells += ["yes" if flag else "" for flag in (algorithm.recurrent, shares_rollouts)]
        rows.append(f"| {' | '.join([*cells, _gates(name)])} |")
    return "\n".join(rows)


def _learns_from(algorithm: Any, is_async: bool) -> tuple[str, bool]:
    """Return where the batches of an algorithm come from, and whether it can train one of several policies."""
    from raceway.algorithms.shared_config import DatasetConfig, ReplayConfig
    from raceway.algorithms.sources import PerturbationSource

    if issubclass(algorithm.config, DatasetConfig):
        return "a dataset", False
    if algorithm.source is PerturbationSource:
        return "perturbed weights", False
    if issubclass(algorithm.config, ReplayConfig):
        return "replay, off-policy", True
    corrected = is_async and hasattr(algorithm.config, "max_rho")
    return "rollouts, off-policy with V-trace" if corrected else "rollouts, on-policy", True


def _gates(name: str) -> str:
    """Return the mean returns that were measured of an algorithm, with their thresholds."""
    path = ROOT / "benchmarks" / "results" / "learning.json"
    rows = [row for row in json.loads(path.read_text())["rows"] if row["what"].split()[0] == name]
    texts = []
    for row in rows:
        env = row["what"].removeprefix(f"{name} ").replace("raceway/", "")
        mean = f"{row['mean']:.2f}" if abs(row["mean"]) < 10 else f"{row['mean']:,.0f}"
        control = "below " if row["met"] and row["mean"] < float(row["bar"]) else ""
        missed = "" if row["met"] else ", missed"
        texts.append(f"{env}: {mean} ({control}{row['bar']}{missed})".replace(" -", " −").replace("(-", "(−"))
    return "; ".join(texts)


_CONTENTS: dict[str, Callable[..., str]] = {
    "source": lambda *arguments: f"```python\n{functions(*arguments)}\n```\n",
    "flow": lambda file: f"\n{diagram(file)}\n",
    "settings": lambda name: f"\n{settings_table(name)}\n",
    "columns": lambda which: f"\n{columns_table(which)}\n",
    "catalogue": lambda which: f"\n{catalogue_table(which)}\n",
}


def updated(text: str, path: Path) -> str:
    """Return a document with what its markers name."""
    for marker in reversed(list(_MARKER.finditer(text))):
        kind, arguments = marker[1], marker[2].split()
        block = _BLOCKS[kind].match(text, marker.end())
        if block is None:
            raise SystemExit(f"{path}: no block follows the marker {marker[0].strip()}")
        text = text[: marker.end()] + _CONTENTS[kind](*arguments) + text[block.end() :]
    return text


def main() -> None:
    """Rewrite the documents that have changed."""
    for path in DOCUMENTS:
        text = path.read_text()
        if updated(text, path) != text:
            path.write_text(updated(text, path))
            sys.stdout.write(f"updated {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
