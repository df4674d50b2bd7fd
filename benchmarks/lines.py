"""Count the lines of the distributed part of each algorithm: Table 1 of the dataflow paper, for the catalogue.

Counts the plan with the operators in its own file, and then with the shared operators that it uses: both are taken from
the syntax trees, by following names through the imports. Blank lines and docstrings are not counted; comments are.

python benchmarks/lines.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from _harness import Report

PACKAGE = Path(__file__).parents[1] / "raceway"
PAPER = {  # before dataflow; RLlib Flow: plan, with shared operators; our goals for the two
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
"""Definitions that `train` adds to every plan, and definitions that are not operators: learner, actors and metrics."""
SERVICES = {"WeightSender", "ReplayInserter"}
"""What operators call to send weights and to account for replay rows: counted in a separate column."""
RUNTIME = ("raceway.engine", "raceway.flow", "raceway.runner")
"""Not counted among the files to read, as torch and Gymnasium are not."""

CONTEXT = "raceway.algorithms.context"
INFRASTRUCTURE = {f"raceway.algorithms.{name}" for name in ("config", "context", "preset_files", "registry")}
"""Modules of the catalogue that belong to no algorithm."""
Definition = ast.FunctionDef | ast.ClassDef


class Module:
    """A source file: its definitions, and the origins of its imports."""

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
        """Return the number of lines of a definition, decorators included."""
        docstrings: set[int] = set()
        for inner in ast.walk(node):
            first = inner.body[0] if isinstance(inner, Definition) else None
            text = first.value if isinstance(first, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                docstrings.update(range(text.lineno, (text.end_lineno or 0) + 1))
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        numbers = range(start, (node.end_lineno or 0) + 1)
        return sum(1 for number in numbers if number not in docstrings and self.lines[number - 1].strip())


_modules: dict[str, Module] = {}


def module(name: str) -> Module:
    """Return a module by its dotted name."""
    if name not in _modules:
        path = PACKAGE.parent / Path(*name.split("."))
        _modules[name] = Module(path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py")
    return _modules[name]


def resolve(module_name: str, name: str) -> tuple[str, str] | None:
    """Return the module of this package that defines a name used in a module, and the name there; else None."""
    source = module(module_name)
    if name in source.defines:
        return module_name, name
    return resolve(*source.imports[name]) if name in source.imports else None


def operators_of(
    module_name: str, name: str, services: bool = False, counts: dict[tuple[str, str], int] | None = None
) -> dict[tuple[str, str], int]:
    """Return the line counts of a definition and of all operators that it uses, directly or indirectly."""
    counts = {} if counts is None else counts
    source = module(module_name)
    node = source.defines[name]
    counts[module_name, name] = source.count(node)
    for definition in definitions_used(node, module_name):
        if definition not in counts and is_operator(*definition) and (services or definition[1] not in SERVICES):
            operators_of(*definition, services, counts)
    return counts


def definitions_used(node: ast.AST, module_name: str) -> Iterator[tuple[str, str]]:
    """Yield the definitions that a piece of code uses, also through methods of its context."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and (definition := resolve(module_name, inner.id)):
            yield definition
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "ctx":
            for method in module(CONTEXT).defines["Context"].body:
                if isinstance(method, ast.FunctionDef) and method.name == inner.attr:
                    yield from definitions_used(method, CONTEXT)


def is_operator(module_name: str, name: str) -> bool:
    """Whether a definition is an operator or a part of one, in raceway.ops or in the file of an algorithm."""
    if name in NOT_OPERATORS or name.endswith("Settings") or module_name in INFRASTRUCTURE:
        return False
    return module_name.startswith("raceway.ops") or (
        module_name.startswith("raceway.algorithms.") and name not in ("Config", "loss")
    )


def files_to_read(algorithm: str) -> dict[str, int]:
    """Return the lengths of all files that define something reached from an algorithm's plan, loss or config."""
    pending = [(f"raceway.algorithms.{algorithm}", name) for name in (algorithm, "Config", "loss")]
    reached: set[tuple[str, str]] = set()
    while pending:
        definition = pending.pop()
        if definition not in reached and not definition[0].startswith(RUNTIME):
            reached.add(definition)
            pending += definitions_used(module(definition[0]).defines[definition[1]], definition[0])
    return {module_name: len(module(module_name).lines) for module_name, _ in sorted(reached)}


def main() -> None:
    """Count the lines, and compare them with the paper's."""
    report = Report("lines")
    for name, (before, paper_plan, paper_all, goal_plan, goal_all) in PAPER.items():
        counts = operators_of(f"raceway.algorithms.{name}", name)
        plan = sum(lines for (module_name, _), lines in counts.items() if module_name.startswith("raceway.algorithms"))
        with_shared = sum(counts.values())
        with_services = sum(operators_of(f"raceway.algorithms.{name}", name, services=True).values())
        print(f"  {name}: " + ", ".join(f"{definition} {lines}" for (_, definition), lines in counts.items()))
        report.row(
            f"{name}: plan and its own operators / with shared ones",
            f"at most {goal_plan} / {goal_all}",
            plan <= goal_plan and with_shared <= goal_all,
            plan=plan,
            with_shared=with_shared,
            with_services=with_services,
            paper_plan=paper_plan,
            paper_with_shared=paper_all,
            paper_before=before,
        )
    all_operators = sum(
        1
        for path in (PACKAGE / "ops").glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    )
    report.row("all operators", f"at most {OPERATORS}", all_operators <= OPERATORS, lines=all_operators)
    files = files_to_read("dqn")
    report.row(
        "dqn: files that its plan, loss and config reach, without engine and flow", "reported", True,
        files=len(files), lines=sum(files.values()),
    )  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
