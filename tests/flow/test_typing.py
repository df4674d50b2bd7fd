"""The types that mypy infers through a chain of operators, and the programs that it rejects."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAD = """
from collections.abc import Iterator
from typing import Any
from raceway.engine.base import Actor
from raceway.flow import Envelope, Iter, ParIter, Run, Source, create, injected, send_msg, union, union_async
def actors() -> list[Actor]: ...
def half(x: int) -> float: ...
def words(x: int) -> list[str]: ...
def with_actor(x: int, *, actor: Any = injected, envelope: Envelope = injected) -> bytes: ...
def pairs(items: Iterator[int]) -> Iterator[tuple[int, int]]: ...
class Add:
    def __call__(self, x: int) -> str: ...
numbers, many = Iter.from_range(9), ParIter.from_range(9, actors())
"""

INFERRED = {
    "numbers": "Iter[int]",
    "many": "ParIter[int]",
    "numbers.batch(2)": "Iter[list[int]]",
    "many.for_each(half).gather_sync()": "Iter[list[float]]",
    "many.for_each(half).gather_async()": "Iter[float]",
    "many.gather_sync().flatten()": "Iter[int]",
    "many.batch(2).flatten()": "ParIter[int]",
    "numbers.transform(pairs)": "Iter[tuple[int, int]]",
    "many.transform(pairs).gather_sync()": "Iter[list[tuple[int, int]]]",
    "many.repeat(2).repeat()": "ParIter[int]",
    "many.repartition(2).for_each(half)": "ParIter[float]",
    "numbers.repeat().next(timeout=0.5)": "int",
    "iter(numbers).next()": "int",
    "union(numbers, numbers, weights=[1, '*'])": "Iter[int]",
    "union(a=numbers, b=numbers, weights={'b': '*'})": "Iter[int]",
    "many.flat_map(words).batch(3).gather_async()": "Iter[list[str]]",
    "many.for_each(with_actor)": "ParIter[bytes]",
    "numbers.for_each(Add()).filter(bool).take(3).queue(2)": "Iter[str]",
    "numbers.for_each(half, on='thread').batch(2).flatten()": "Iter[float]",
    "next(numbers.zip_with_source())[1]": "int",
    "next(numbers.zip_with_source())[0].shard": "int",
    "many.select_shards(0).on_failure('drop').shuffle(3)": "ParIter[int]",
    "union(numbers, numbers)": "Iter[int]",
    "union_async(a=numbers.for_each(half), b=numbers.for_each(half))": "Iter[float]",
    "numbers.split()[0]": "Iter[int]",
    "next(numbers.for_each(half))": "float",
    "iter(numbers)": "Run[int]",
    "Iter.from_items(lambda: iter('ab'))": "Iter[str]",
    "[x for x in numbers.batch(2)]": "list[list[int]]",
}

REJECTED = [
    "numbers.for_each(str.upper)",
    "numbers.batch(2).for_each(half)",
    "many.for_each(half).gather_sync().for_each(half)",
    "numbers.flatten()",
    "numbers.flat_map(half)",
    "many.batch('2')",
    "many.flatten()",
    "numbers.transform(half)",
    "union(numbers, numbers, weights=[1, 'all'])",
    "x: Iter[str] = numbers.for_each(half)",
    "numbers.gather_sync()",
    "many.queue(3)",
    "union(many, many)",
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Reports of mypy, for every expression of INFERRED and REJECTED."""
    reveals = [f"reveal_type({expression})" for expression in INFERRED]
    source = textwrap.dedent(HEAD) + "\n".join([*reveals, *REJECTED]) + "\n"
    file = tmp_path_factory.mktemp("typing") / "program.py"
    file.write_text(source)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(root / "pyproject.toml"), str(file)]
    command += ["--allow-untyped-calls", "--disable-error-code", "empty-body", "--disable-error-code", "unused-ignore"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=280, check=False)
    lines = [""] * (source.count("\n") + 2)
    for line in done.stdout.splitlines():
        parts = line.split(":", 3)
        if len(parts) == 4 and parts[0].endswith("program.py"):
            lines[int(parts[1])] += line + "\n"
    assert any(lines), done.stdout + done.stderr
    assert not any(lines[: HEAD.count("\n") + 1]), "\n".join(lines)
    return lines[HEAD.count("\n") + 1 :]


@pytest.mark.parametrize("index", range(len(INFERRED)), ids=list(INFERRED))
def test_mypy_infers_the_type(reports: list[str], index: int) -> None:
    expected = list(INFERRED.values())[index]
    text = re.sub(r"raceway\.flow\._\w+\.", "", reports[index])
    assert f'Revealed type is "{expected}"' in text
    assert "error" not in text


@pytest.mark.parametrize("index", range(len(REJECTED)), ids=REJECTED)
def test_mypy_rejects_the_program(reports: list[str], index: int) -> None:
    assert "error:" in reports[len(INFERRED) + index]
