"""The contract in raceway/engine/base.py is complete: the layers above use nothing else, and every engine has it."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from raceway.engine.base import Engine
from raceway.engine.inline import InlineEngine
from raceway.engine.process.engine import ProcessEngine
from raceway.engine.ray.engine import RayEngine

PACKAGE = Path(__file__).parents[2] / "raceway"
PUBLIC_MODULES = {
    "raceway.engine",
    "raceway.engine.base",
    "raceway.engine.driver_client",
    "raceway.engine.malloc",
    "raceway.engine.plan_only",
}

METHODS = {
    name: method
    for name, method in vars(Engine).items()
    if inspect.isfunction(method) and (not name.startswith("_") or name in ("__enter__", "__exit__"))
}
MEMBERS = METHODS.keys() | Engine.__annotations__.keys()


def sources(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield (path, syntax tree) of the files of raceway, or only of some of its packages, without the engines'."""
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE)
        if path.parts[0] != "engine" and (not packages or path.parts[0] in packages):
            yield f"raceway/{path.as_posix()}", ast.parse(file.read_text(encoding="utf-8"))


def private_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of everything imported from the engine package that is not in a public module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("raceway.engine") and alias.name not in PUBLIC_MODULES:
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[:2] == ["raceway", "engine"]:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_submodule = node.module == "raceway.engine" and (PACKAGE / "engine" / f"{alias.name}.py").exists()
                module = name if is_submodule else node.module
                if module not in PUBLIC_MODULES or alias.name.startswith("_"):
                    yield node.lineno, name


def engine_attributes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, attribute) for every attribute of `engine`, `_engine`, `x.engine` or `x._engine`."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            if isinstance(owner, ast.Name):
                name = owner.id if owner.id not in imported else ""
            else:
                name = owner.attr if isinstance(owner, ast.Attribute) else ""
            if name in ("engine", "_engine"):
                yield node.lineno, node.attr


def test_the_layers_above_import_only_public_modules_of_the_engine() -> None:
    imports = [f"{path}:{line}: {name}" for path, tree in sources() for line, name in private_imports(tree)]
    assert not imports, "\n".join(imports)


def test_the_layers_above_use_only_members_of_the_protocol() -> None:
    used = [
        (f"{path}:{line}: engine.{attribute}", attribute)
        for path, tree in sources("flow", "runner", "ops", "torchrl")
        for line, attribute in engine_attributes(tree)
    ]
    assert len(used) > 30, "the search finds nothing any more"
    undeclared = [use for use, attribute in used if attribute not in MEMBERS]
    assert not undeclared, "\n".join(undeclared)


def test_every_member_is_documented() -> None:
    assert [name for name, method in METHODS.items() if not inspect.getdoc(method)] == []
    assert [
        name for name in METHODS if not name.startswith("_") and name not in (inspect.getmodule(Engine).__doc__ or "")
    ] == []


@pytest.mark.parametrize("cls", [InlineEngine, ProcessEngine, RayEngine])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_engine_has_the_signatures_of_the_protocol(cls: type, name: str) -> None:
    expected = inspect.signature(METHODS[name]).parameters
    actual = inspect.signature(getattr(cls, name)).parameters
    assert [(p.name, p.kind, p.default) for p in actual.values()] == [
        (p.name, p.kind, p.default) for p in expected.values()
    ]


def test_every_engine_has_every_member(engine: Engine) -> None:
    assert isinstance(engine, Engine)
    assert [name for name in MEMBERS if not hasattr(engine, name)] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from raceway.engine._codec import Payload", ["raceway.engine._codec.Payload"]),
        ("from raceway.engine import _codec", ["raceway.engine._codec"]),
        ("import raceway.engine.ray.engine", ["raceway.engine.ray.engine"]),
        ("from raceway.engine.inline import InlineEngine", ["raceway.engine.inline.InlineEngine"]),
        ("from raceway.engine.base import _x", ["raceway.engine.base._x"]),
        ("from raceway.engine import base, make_engine\nfrom raceway.engine.base import Engine", []),
    ],
)
def test_private_imports_are_found(source: str, expected: list[str]) -> None:
    assert [name for _, name in private_imports(ast.parse(source))] == expected


def test_attributes_of_engines_are_found() -> None:
    source = "from raceway.engine import base as engine\nengine.Future\nself.engine.wait()\nhub._engine.lock\n"
    assert sorted(name for _, name in engine_attributes(ast.parse(source))) == ["lock", "wait"]
