"""How many lines the distributed part of each algorithm takes: Table 1 of the dataflow paper, for the catalogue.

The plan with operators of its own file, and then with the shared operators that it reaches: both are found from the
syntax trees, by following names through the imports. Blank lines and docstrings are not counted; comments are.

python benchmarks/lines.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from _harness import Report

PACKAGE = Path(__file__).parents[1] / "raceway"
PAPER = {  # before dataflow; RLlib Flow's plan and with shared operators; the goals of both
    "a3c": (87, 9, 52, 9, 40),
    "a2c": (154, 25, 50, 12, 40),
    "dqn": (239, 87, 139, 25, 100),
    "ppo": (386, 79, 225, 20, 80),
    "apex": (250, 126, 216, 30, 120),
    "impala": (694, 89, 362, 20, 120),
    "maml": (370, 136, 136, 30, 100),
}
OPERATORS = 1118
"""Lines of the paper's operators."""
NOT_OPERATORS = {"ReportMetrics", "parallel_rollouts", "Learner", "RolloutWorker", "ReplayShard", "TrainStats"}
"""What `train` adds to every plan, and what is no operator: the learner, what lives on actors, and figures."""

ALL_OF_DQN = 300
"""Lines that it should take to understand DQN."""
READ_TOO = (
    ("raceway.algorithms.shared_config", "ReplayConfig"),
    ("raceway.replay.buffer", "Replay"),
    ("raceway.replay.storage", "Columns"),
    ("raceway.replay.samplers", "Uniform"),
    ("raceway.agents.distributions", "EpsilonGreedy"),
    ("raceway.agents.networks", "Head"),
)
"""What DQN is made of beside its operators: the replay class, and what acts by values."""

BASE = "raceway.algorithms.base"
Definition = ast.FunctionDef | ast.ClassDef


class Module:
    """One file: what it defines, and where what it imports comes from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.read_text(encoding="utf-8").splitlines()
        self.tree = ast.parse("\n".join(self.lines))
        self.defines = {node.name: node for node in self.tree.body if isinstance(node, Definition)}
        self.imports: dict[str, tuple[str, str]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("raceway"):
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (node.module or "", alias.name)

    def count(self, node: Definition) -> int:
        """Return how many lines a definition has, its decorators among them."""
        hidden: set[int] = set()
        for inner in ast.walk(node):
            first = inner.body[0] if isinstance(inner, Definition) else None
            text = first.value if isinstance(first, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                hidden.update(range(text.lineno, (text.end_lineno or 0) + 1))
        begin = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        numbers = range(begin, (node.end_lineno or 0) + 1)
        return sum(1 for number in numbers if number not in hidden and self.lines[number - 1].strip())


_modules: dict[str, Module] = {}


def module(name: str) -> Module:
    """Return a module by its dotted name."""
    if name not in _modules:
        path = PACKAGE.parent / Path(*name.split("."))
        _modules[name] = Module(path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py")
    return _modules[name]


def find(where: str, name: str) -> tuple[str, str] | None:
    """Return the module that defines a name that a module knows, if it is one of this package."""
    here = module(where)
    if name in here.defines:
        return where, name
    return find(*here.imports[name]) if name in here.imports else None


def reached(where: str, name: str, found: dict[tuple[str, str], int] | None = None) -> dict[tuple[str, str], int]:
    """Return the definitions of operators that one reaches, itself included, with their lines."""
    found = {} if found is None else found
    here = module(where)
    node = here.defines[name]
    found[where, name] = here.count(node)
    for there in named_in(node, where):
        if there not in found and is_operator(*there):
            reached(*there, found)
    return found


def named_in(node: ast.AST, where: str) -> Iterator[tuple[str, str]]:
    """Yield the definitions that a piece of code names; what it asks of its context is what that method names."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and (there := find(where, inner.id)):
            yield there
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "ctx":
            for method in module(BASE).defines["Context"].body:
                if isinstance(method, ast.FunctionDef) and method.name == inner.attr:
                    yield from named_in(method, BASE)


def is_operator(where: str, name: str) -> bool:
    """Whether a definition is an operator, or what one is made of: of the folder of operators, or of an algorithm's."""
    if name in NOT_OPERATORS or name.endswith("Settings") or where == BASE:
        return False
    return where.startswith("raceway.ops") or (
        where.startswith("raceway.algorithms.") and name not in ("Config", "loss")
    )


def everything_of_dqn() -> dict[str, int]:
    """Return the lines of what one has to read to know what DQN does: its file and all that it is made of."""
    here = module("raceway.algorithms.dqn")
    whole: list[Definition] = list(here.defines.values())
    found = {"dqn.py": sum(map(here.count, whole)) + sum(_length(node) for node in here.tree.body if _is_plain(node))}
    for (where, name), lines in reached("raceway.algorithms.dqn", "dqn").items():
        if where != "raceway.algorithms.dqn":
            found[name] = lines
    for where, name in READ_TOO:
        found[name] = module(where).count(module(where).defines[name])
    return found


def _is_plain(node: ast.stmt) -> bool:
    """Whether a statement is an import; presets, which are settings for environments, need not be read."""
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def main() -> None:
    """Count, and compare with the paper."""
    report = Report("lines")
    for name, (before, paper_plan, paper_all, goal_plan, goal_all) in PAPER.items():
        found = reached(f"raceway.algorithms.{name}", name)
        plan = sum(lines for (where, _), lines in found.items() if where.startswith("raceway.algorithms"))
        every = sum(found.values())
        print(f"  {name}: " + ", ".join(f"{one} {lines}" for (_, one), lines in found.items()))
        report.row(
            f"{name}: plan and its own operators / with shared ones",
            f"at most {goal_plan} / {goal_all}",
            plan <= goal_plan and every <= goal_all,
            plan=plan,
            with_shared=every,
            paper_plan=paper_plan,
            paper_with_shared=paper_all,
            paper_before=before,
        )
    folder = sum(
        1
        for path in (PACKAGE / "ops").glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    )
    report.row("all operators", f"at most {OPERATORS}", folder <= OPERATORS, lines=folder)
    to_read = everything_of_dqn()
    print("  dqn, to read: " + ", ".join(f"{name} {lines}" for name, lines in to_read.items()))
    total = sum(to_read.values())
    report.row(
        "dqn: its file, operators, replay class and policy head", f"under {ALL_OF_DQN}", total < ALL_OF_DQN, lines=total
    )
    report.write()


if __name__ == "__main__":
    main()
