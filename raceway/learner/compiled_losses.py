"""Losses and their gradients as compiled graphs, computed in blocks of rows without Python's lock.

For the batches and networks of learning from replay, torch takes as long to record and dispatch the operations of an
update as to compute them. A graph has neither, and several threads can compute at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raceway.agents.agent import Agent
from raceway.autograd.fast_paths import without_fast_paths
from raceway.autograd.row_blocks import run_parallel, split_rows
from raceway.autograd.tape import use_tape
from raceway.compiler.compiled_function import Call, CompiledFunction
from raceway.compiler.recording import NotCompilable, record
from raceway.learner.active_objectives import ActiveObjective
from raceway.learner.objectives import Loss, LossOutput, check_loss_output
from raceway.rl import Batch, tree_map

BLOCK_ROWS = 128
_WEIGHTS, _COLUMN, _PRIORITIES = "weights.", "batch.", "priorities"
_TOLERANCE = 1e-3  # of gradients
_MAX_SIZES = 8  # numbers of rows that are compiled for an objective: batches whose size varies are not


class CompiledLosses:
    """The compiled losses of a learner.

    A loss must be a mean over the rows of the batch, as it is computed for blocks of them. It may add columns to the
    batch for the objectives after it. What it reads besides the agent, its target networks, the batch and random
    numbers must be constant. A loss for which a graph gives other gradients than torch is not compiled.

    Args:
        agent: the agent.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._compiled: dict[tuple[str, int], _CompiledLoss] = {}  # by objective and number of rows
        self.refused: dict[str, str] = {}
        """The reasons for which objectives are not compiled, by name."""

    def __getstate__(self) -> dict[str, Any]:
        return {"agent": self.agent, "_compiled": {}, "refused": {}}

    def minimise(
        self, objective: ActiveObjective, loss: Loss, batch: Batch, random: torch.Generator
    ) -> LossOutput | None:
        """Set the gradients of an objective's parameters, in place of what they were, and return what its loss returns.

        Columns that the loss adds are added to the batch. Returns None if the loss cannot be compiled.
        """
        key = objective.name, len(batch["action"])
        compiled = self._compiled.get(key)
        if compiled is not None and compiled.loss is loss:
            return compiled(batch)
        if objective.name in self.refused or not self._can_compile(objective, loss, batch):
            return None
        try:
            with objective.isolated():
                compiled = self._compiled[key] = _CompiledLoss(self.agent, objective, loss, batch, random)
        except NotCompilable as error:
            self.refused[objective.name] = str(error)
            return None
        return compiled(batch)

    def _can_compile(self, objective: ActiveObjective, loss: Loss, batch: Batch) -> bool:
        """Whether a loss is a function, for batches of transitions of a few sizes."""
        sizes = sum(name == objective.name for name, _ in self._compiled)
        same_length = len({leaf.shape[:1] for _, leaf in _leaves(batch)}) == 1
        return sizes < _MAX_SIZES and same_length and not self.agent.actor.recurrent and _is_plain(loss)


class _Loss(NamedTuple):
    """A compiled loss for a number of rows, and the tensors that it returned when it was recorded."""

    function: CompiledFunction
    output: LossOutput
    numbers: dict[str, Tensor]
    """The value and the metrics, each times the share of the rows in the batch."""
    gradients: dict[int, Tensor]
    """By the index of the parameter. The others have none."""
    columns: dict[str, Tensor]
    """What has an entry for every row: the columns that it added to the batch, and priorities."""


class _CompiledLoss:
    """One loss, for batches of one size."""

    def __init__(
        self,
        agent: Agent,
        objective: ActiveObjective,
        loss: Loss,
        batch: Batch,
        random: torch.Generator,
    ) -> None:
        num_rows = len(batch["action"])
        self.agent, self.objective, self.loss = agent, objective, loss
        self._weights = _weights(agent)
        rows = split_rows(num_rows, BLOCK_ROWS)
        sizes = {block.stop - block.start for block in rows}
        losses = {size: self._compile(_first_rows(batch, size), size / num_rows, random) for size in sizes}
        compiled = [losses[block.stop - block.start] for block in rows]
        self._output, self._columns = (
            compiled[0].output,
            {
                name: np.empty((num_rows, *column.shape[1:]), _dtype(column))
                for name, column in compiled[0].columns.items()
            },
        )
        self._blocks = [_Block(*entry, self._columns) for entry in zip(compiled, rows, strict=True)]
        self._addresses: list[int] = []
        self._compare_with_torch(tree_map(lambda column: column.flip(0), dict(batch)), random)

    def _compile(self, rows: Batch, share: float, random: torch.Generator) -> _Loss:
        """Compile the loss for some rows."""
        inputs = self._weights | dict(_leaves(rows))
        with _drawing_nothing(random):
            recording = record(partial(self._loss_and_gradients, rows, share, random), list(inputs.values()))
        output, numbers, gradients, columns = recording.result
        weights = _weights(self.agent)
        if any(weights[name] is not tensor for name, tensor in self._weights.items()):
            raise NotCompilable("it replaces a buffer of the agent")
        for name, column in columns.items():
            if column.shape[:1] != rows["action"].shape[:1]:
                raise NotCompilable(f"its {name} do not have an entry for every row of the batch")
        indices = {index: gradient for index, gradient in enumerate(gradients) if gradient is not None}
        outputs = numbers | {f"gradient {index}": gradient for index, gradient in indices.items()} | columns
        return _Loss(CompiledFunction(recording, inputs, outputs), output, numbers, indices, columns)

    def _loss_and_gradients(self, rows: Batch, share: float, random: torch.Generator) -> Any:
        known = set(rows)
        output = check_loss_output(self.objective.call(self.loss, self.agent, rows, random), self.objective.name)
        numbers = {"loss": output.value * share}
        numbers |= {_metric(name): entry * share for name, entry in output.metrics.items() if isinstance(entry, Tensor)}
        gradients = torch.autograd.grad(numbers["loss"], self.objective.parameters, allow_unused=True)
        columns = {name: rows[name] for name in rows if name not in known}
        if output.priorities is not None:
            columns[_PRIORITIES] = output.priorities
        return output, numbers, gradients, columns

    def _compare_with_torch(self, batch: Batch, random: torch.Generator) -> None:
        """Refuse a graph that gives other gradients than torch, for other rows than those that it was recorded with."""
        self._bind_memory()
        block = self._blocks[0]
        with _drawing_nothing(random):
            block.set_batch({name: leaf.numpy() for name, leaf in _leaves(batch)})
            block.run()
        rows, share = tree_map(lambda column: column[block.rows], batch), block.rows.stop / len(batch["action"])
        with _drawing_nothing(random), without_fast_paths(), use_tape(None):
            expected = self._loss_and_gradients(rows, share, random)[2]
        for gradient, wanted in zip(block.gradients, expected, strict=True):
            if wanted is not None and (gradient - wanted).abs().max() > _TOLERANCE * (wanted.abs().max() + _TOLERANCE):
                raise NotCompilable("its graph gives other gradients than torch")

    def __call__(self, batch: Batch) -> LossOutput:
        """Set the gradients, add the columns to the batch, and return what the loss returns."""
        self._bind_memory()
        arrays = {name: leaf.numpy() for name, leaf in _leaves(batch)}
        for block in self._blocks:
            block.set_batch(arrays)
        first, *others = self._blocks
        if first.is_large:
            run_parallel(_Block.run, self._blocks)
        else:
            for block in self._blocks:
                block.run()
        for block in others:
            torch._foreach_add_(first.gradients, block.gradients)
        numbers = {name: sum(float(block.numbers[name]) for block in self._blocks) for name in first.numbers}
        metrics = {name: numbers.get(_metric(name), entry) for name, entry in self._output.metrics.items()}
        columns = {name: torch.from_numpy(column) for name, column in self._columns.items()}
        priorities = columns.pop(_PRIORITIES, None)
        batch |= columns
        return LossOutput(torch.tensor(numbers["loss"]), metrics, priorities)

    def _bind_memory(self) -> None:
        """Bind the memory of weights and gradients, if it is not what it was at the last call."""
        gradients = [parameter.grad for parameter in self.objective.parameters]
        addresses = [tensor.data_ptr() for tensor in (*self._weights.values(), *gradients)]  # type: ignore[union-attr]
        if addresses != self._addresses:
            self._addresses = addresses
            for index, block in enumerate(self._blocks):
                own = gradients if index == 0 else list(map(torch.zeros_like, gradients))  # type: ignore[arg-type]
                block.bind_memory(self._weights, own)  # type: ignore[arg-type]


@contextmanager
def _drawing_nothing(random: torch.Generator) -> Iterator[None]:
    """Leave generators as they were: a run that is resumed compiles once more."""
    before = random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.set_state(before[0])
        torch.set_rng_state(before[1])


class _Block:
    """Some rows of a batch, and what a loss returns for them."""

    def __init__(self, loss: _Loss, rows: slice, columns: Mapping[str, np.ndarray]) -> None:
        self.rows, self._call, self._with_gradient = rows, Call(loss.function), list(loss.gradients)
        self.is_large = loss.function.is_large
        self.numbers = {name: np.zeros(number.shape, _dtype(number)) for name, number in loss.numbers.items()}
        self.gradients: list[Tensor] = []
        """One for every parameter."""
        inputs = loss.function.inputs
        self._weights = [name for name in inputs if name.startswith(_WEIGHTS)]
        self._leaves = [name for name in inputs if name.startswith(_COLUMN)]
        for name, array in [*self.numbers.items(), *((name, column[rows]) for name, column in columns.items())]:
            self._call.bind_output(name, array)

    def bind_memory(self, weights: Mapping[str, Tensor], gradients: list[Tensor]) -> None:
        """Read weights from, and write gradients to, the memory of these tensors."""
        for name in self._weights:
            self._call.bind_input(name, weights[name].detach().numpy())
        for index in self._with_gradient:
            self._call.bind_output(f"gradient {index}", gradients[index].numpy())
        self.gradients = gradients

    def set_batch(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Use its rows of a batch, and new random numbers, in the next call."""
        for name in self._leaves:
            self._call.copy_input(name, arrays[name][self.rows])
        self._call.draw()

    def run(self) -> None:
        """Compute the gradients, the numbers and the columns."""
        self._call.run()


def _weights(agent: Agent) -> dict[str, Tensor]:
    """Return the parameters and buffers of an agent and of its target networks, by name."""
    agents = {"agent": agent} | ({"target": agent.target} if agent.has_target else {})
    return {
        f"{_WEIGHTS}{name}.{key}": tensor
        for name, module in agents.items()
        for key, tensor in [*module.named_parameters(), *module.named_buffers()]
    }


def _leaves(batch: Batch, prefix: str = _COLUMN) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a batch, whose columns may be nested, by name."""
    for name, column in batch.items():
        if isinstance(column, dict):
            yield from _leaves(column, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", column


def _first_rows(batch: Batch, num: int) -> Batch:
    return tree_map(lambda column: column[:num], dict(batch))


def _dtype(tensor: Tensor) -> Any:
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype


def _metric(name: str) -> str:
    return f"metric {name}"


def _is_plain(loss: Any) -> bool:
    """Whether a loss is a function, perhaps with arguments given: objects may have a state that changes."""
    while isinstance(loss, partial):
        loss = loss.func
    return isinstance(loss, FunctionType)
