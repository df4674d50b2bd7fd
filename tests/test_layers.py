"""Imports point downwards: a package of raceway imports only itself and the layers below it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "raceway"

LAYERS = [
    {"deprecations", "errors", "formatting", "imports"},
    {"checks", "cleanup", "file_schemas"},
    {"settings"},
    {"injection"},
    {"state"},
    {"engine"},
    {"flow"},
    {"runner"},
    {"rl"},
    {"autograd", "checkpoints"},
    {"compiler"},
    {"envs", "agents", "replay", "datasets"},
    {"learner"},
    {"rollouts"},
    {"ops"},
    {"algorithms", "machine", "signals", "torchrl"},
    {"runs"},
    {"ui"},
    {"training"},
    {"loaded_policy"},
    {"recording"},
    {"commands"},
    {"cli", "dashboard"},
]
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}
FRONT_DOOR = {"__init__", "__main__"}  # above every layer

ONLY_IN = {
    "ray": "raceway/engine/ray/",
    "torchrl": "raceway/torchrl/",
    "tensordict": "raceway/torchrl/",
    "minari": "raceway/datasets/minari_format.py",
    "onnxruntime": "raceway/compiler/",
}
NEVER_IN = {"torch": "raceway/flow/", "gymnasium": "raceway/flow/"}


def imported_modules(tree: ast.Module, path: str) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) of every import, also in functions and under `if TYPE_CHECKING`."""
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def import_error(path: str, module: str) -> str | None:
    """Return why a file may not import a module, or None if it may."""
    top, *rest = module.split(".")
    if top in ONLY_IN and not path.startswith(ONLY_IN[top]):
        return f"only {ONLY_IN[top]} may import {top}"
    if top in NEVER_IN and path.startswith(NEVER_IN[top]):
        return f"{NEVER_IN[top]} may not import {top}"
    importer = path.split("/")[1].removesuffix(".py")
    if top != "raceway" or importer in FRONT_DOOR:
        return None
    if importer not in RANK:
        return f"raceway.{importer} has no layer; add it to LAYERS in {Path(__file__).name}"
    imported = rest[0] if rest else ""
    if imported not in RANK:
        return f"{module} is not in a layer; import it from the package that defines it"
    if imported != importer and RANK[imported] >= RANK[importer]:
        return f"raceway.{importer} may not import raceway.{imported}, which is not below it"
    return None


def violations(source: str, path: str) -> list[str]:
    """Return a message for each import of a file in raceway/ that breaks the rules."""
    imports = ((line, import_error(path, module)) for line, module in imported_modules(ast.parse(source), path))
    return [f"{path}:{line}: {message}" for line, message in imports if message]


def test_imports_point_downwards() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert PACKAGE / "__init__.py" in files
    broken = [
        line
        for file in files
        for line in violations(file.read_text(encoding="utf-8"), file.relative_to(PACKAGE.parent).as_posix())
    ]
    assert not broken, "\n".join(broken)


def test_every_package_has_a_layer() -> None:
    parts = {entry.stem for entry in PACKAGE.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()}
    assert parts - FRONT_DOOR <= RANK.keys()


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("raceway/engine/inline.py", "from raceway.flow import Iter"),
        ("raceway/engine/inline.py", "import raceway.runner.objects"),
        ("raceway/engine/inline.py", "from ..flow.graph import Node"),
        ("raceway/engine/inline.py", "from .. import flow"),
        ("raceway/engine/inline.py", "from raceway import Runner"),
        ("raceway/engine/inline.py", "def f():\n    from raceway.ops import rollout"),
        ("raceway/engine/inline.py", "if TYPE_CHECKING:\n    from raceway.flow import Iter"),
        ("raceway/engine/inline.py", "import ray"),
        ("raceway/engine/__init__.py", "from ..errors import EngineError\nfrom ..flow import Iter"),
        ("raceway/engine/inline.py", "importlib.import_module('raceway.cli')"),
        ("raceway/flow/graph.py", "import torch.nn"),
        ("raceway/rl/returns.py", "from raceway.replay import Uniform"),
        ("raceway/checkpoints/store.py", "from raceway.runs import directory"),
        ("raceway/algorithms/dqn.py", "from tensordict import TensorDict"),
        ("raceway/algorithms/dqn.py", "import torchrl.objectives"),
        ("raceway/errors.py", "from .engine import base"),
        ("raceway/helpers.py", "from raceway.errors import RacewayError"),
    ],
)
def test_an_upward_import_is_a_violation(path: str, source: str) -> None:
    assert len(violations(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("raceway/__init__.py", "from raceway.runner import Runner\nfrom . import cli"),
        ("raceway/engine/ray/engine.py", "import ray\nfrom ray.actor import ActorHandle"),
        ("raceway/engine/__init__.py", "from . import ray\nfrom .base import Engine\nfrom ..errors import EngineError"),
        ("raceway/engine/inline.py", "import os, numpy\nimport torch\nfrom raceway.engine.base import Engine"),
        ("raceway/runner/runner.py", "from raceway.engine import ray\nfrom raceway import errors, flow"),
        (
            "raceway/torchrl/loss.py",
            "import torchrl\nfrom tensordict import TensorDict\nfrom raceway.runner import Runner",
        ),
        ("raceway/cli.py", "from raceway.algorithms import registry\nfrom raceway.runs import directory"),
    ],
)
def test_a_downward_import_is_allowed(path: str, source: str) -> None:
    assert violations(source, path) == []
