"""Every block of docs/learn/your-own-algorithm.md runs, in a virtual environment, and prints what the guide shows."""

import os
import re
import site
import subprocess
import venv
from pathlib import Path

import pytest

from tests.conftest import GENEROUS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "learn" / "your-own-algorithm.md").read_text()
BLOCKS = re.findall(r"(?:<!-- (\w+)(?:: (\S+))? -->\n)?```(\w+)\n(.*?)^```\n", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Environment variables of a virtual environment that has the packages of this one, and pip without an index."""
    path = tmp_path / "env"
    venv.create(path, symlinks=True)
    packages = next(path.glob("lib/python*/site-packages"))
    parents = [str(ROOT), *site.getsitepackages()]
    (packages / "parent.pth").write_text("\n".join(parents) + "\n")
    command = f"#!{path}/bin/python\nimport sys\nfrom raceway.cli import main\nsys.exit(main())\n"
    (path / "bin" / "raceway").write_text(command)
    (path / "bin" / "raceway").chmod(0o755)
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_CACHE_DIR": "1"}
    others = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**others, **pip, "PATH": f"{path}/bin:{os.environ['PATH']}", "PYTHONWARNINGS": "ignore"}


def masked(line: str) -> str:
    """Return a line without its numbers, and with single spaces: those depend on the machine."""
    return " ".join(re.sub(r"\d[\d,.:-]*", "#", line).split())


def assert_shown(expected: str, output: str) -> None:
    """Check that the expected lines are in the output, in their order."""
    lines = iter([masked(line) for line in output.splitlines()])
    for line in expected.splitlines():
        assert masked(line) in lines, f"not in the output, or not in this order: {line!r}\n{output}"


def test_every_block_runs_and_prints_what_the_guide_shows(tmp_path: Path, environment: dict[str, str]) -> None:
    output, kinds = "", []
    for kind, name, language, text in BLOCKS:
        kinds.append(kind or language)
        if kind in ("file", "append"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            before = path.read_text() + "\n\n" if kind == "append" else ""
            path.write_text(before + text)
        elif kind == "run":
            command = ["bash", "-e", "-c", text]
            options = {"cwd": tmp_path, "env": environment, "text": True, "timeout": 8 * GENEROUS, "check": False}
            outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)  # type: ignore[call-overload]
            output = outcome.stdout
            assert outcome.returncode == 0, output
        else:
            assert language == "text", f"a block that is not run: {text}"
            assert_shown(text, output)
    assert {"file", "append", "run", "text"} == set(kinds)
    assert kinds.count("run") == kinds.count("text") == 10


def test_a_line_that_is_not_printed_is_found() -> None:
    assert_shown("b: 3.25 steps\n", "a: 1\nb:   7 steps\n")
    with pytest.raises(AssertionError, match="not in the output"):
        assert_shown("b: 3\na: 1\n", "a: 1\nb: 2\n")


def test_the_guide_has_no_other_blocks() -> None:
    assert GUIDE.count("```") == 2 * len(BLOCKS)
