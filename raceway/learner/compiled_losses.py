"""Losses and their gradients as compiled graphs, computed in blocks of rows without Python's lock.

For the batches and networks of learning from replay, torch takes as long to record and dispatch the operations of an
update as to compute them. A graph has neither, and several threads can compute at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from raceway.compiler.recording import Draw, NotCompilable, record
from raceway.learner.active_objectives import ActiveObjective
from raceway.learner.global_random import may_sample_globally
from raceway.learner.objectives import Loss, LossOutput, check_loss_output
from raceway.rl import Batch, tree_map

BLOCK_ROWS, SMALL_BLOCK_ROWS = 128, 1024
"""The number of rows in a block, with and without large layers."""
_MIN_WEIGHTS = 1 << 14  # of a large layer
_TOLERANCE = 1e-3  # of gradients
_MAX_COMPILED = 8  # times that an objective is compiled: batches whose size varies are not
_WEIGHTS, _COLUMN, _PRIORITIES, _BUFFER = "weights.", "batch.", "priorities", "buffer "


class CompiledLosses:
    """The compiled losses of a learner.

    What a loss reads besides the agent, its target networks, the batch and random numbers must be constant. It may add
    columns to the batch for the objectives after it. A loss that is a mean over the rows of the batch is computed in
    blocks of them. One for which a graph gives other gradients than torch is not compiled.

    Args:
        agent: the agent.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._compiled: dict[tuple[str, torch.Size], _CompiledLoss] = {}  # by objective and shape of the actions
        self._num_compiled: Counter[str] = Counter()
        self.refused: dict[str, str] = {}
        """The reasons for which objectives are not compiled, by name."""

    def __getstate__(self) -> dict[str, Any]:
        return {"agent": self.agent, "_compiled": {}, "_num_compiled": Counter(), "refused": {}}

    def minimise(
        self, objective: ActiveObjective, loss: Loss, batch: Batch, random: torch.Generator
    ) -> LossOutput | None:
        """Set the gradients of an objective's parameters, in place of what they were, and return what its loss returns.

        Columns that the loss adds are added to the batch. Returns None if the loss cannot be compiled.
        """
        key = objective.name, batch["action"].shape
        compiled = self._compiled.get(key)
        if compiled is not None and compiled.loss is loss:
            return compiled(batch)
        if objective.name in self.refused or not self._can_compile(objective, loss):
            return None
        self._num_compiled[objective.name] += 1
        try:
            with objective.isolated():
                compiled = self._compiled[key] = _CompiledLoss(self.agent, objective, loss, batch, random)
        except NotCompilable as error:
            self.refused[objective.name] = str(error)
            return None
        return compiled(batch)

    def num_blocks(self, objective: str) -> list[int]:
        """Return the number of blocks in which each size of batch is computed."""
        return [len(compiled.blocks) for (name, _), compiled in self._compiled.items() if name == objective]

    def _can_compile(self, objective: ActiveObjective, loss: Loss) -> bool:
        """Whether a loss is a function, and neither it nor the size of its batches changes again and again."""
        return self._num_compiled[objective.name] < _MAX_COMPILED and not self.agent.actor.recurrent and _is_plain(loss)


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
    buffers: dict[str, Tensor]
    """The new values of buffers."""


class _CompiledLoss:
    """One loss, for batches of one size."""

    def __init__(
        self, agent: Agent, objective: ActiveObjective, loss: Loss, batch: Batch, random: torch.Generator
    ) -> None:
        self.agent, self.objective, self.loss, self._random = agent, objective, loss, random
        self._weights = _weights(agent)
        self._addresses: list[int] = []
        self._samples_globally = may_sample_globally(agent, [loss])
        large = any(parameter.numel() >= _MIN_WEIGHTS for parameter in objective.parameters)
        blocks = split_rows(len(batch["action"]), BLOCK_ROWS if large else SMALL_BLOCK_ROWS)
        has_rows = len({leaf.shape[:1] for _, leaf in _leaves(batch)}) == 1 and not objective.whole_batch
        self._set_blocks(batch, blocks if has_rows and len(blocks) > 1 else [slice(None)])
        if self._output.buffers and len(self.blocks) > 1:  # of all rows together
            self._set_blocks(batch, [slice(None)])
        example = _perturbed(batch)
        self._compare_with_torch(example)
        if len(self.blocks) > 1 and not self._is_mean_over_rows(example):
            self._set_blocks(batch, [slice(None)])

    def _set_blocks(self, batch: Batch, blocks: list[slice]) -> None:
        """Compile the loss for blocks of rows; a block of `slice(None)` is the whole batch."""
        total = len(batch["action"])
        sizes = [total if block.stop is None else block.stop - block.start for block in blocks]
        losses: dict[int, _Loss] = {}
        for size, block in zip(sizes, blocks, strict=True):
            if size not in losses:
                losses[size] = self._compile(_rows_of(batch, block), size / total)
        self._output = losses[sizes[0]].output
        self._columns = {
            name: np.empty((total, *column.shape[1:]), _dtype(column))
            for name, column in losses[sizes[0]].columns.items()
        }
        self.blocks = [
            _Block(losses[size], block, size / total, size, self._columns)
            for size, block in zip(sizes, blocks, strict=True)
        ]
        self._addresses = []

    def _compile(self, rows: Batch, share: float) -> _Loss:
        """Compile the loss for some rows, whose share of the batch this is."""
        inputs = self._weights | dict(_leaves(rows))
        with self._drawing_nothing():
            recording = record(partial(self._loss_and_gradients, rows, share), list(inputs.values()))
        output, numbers, gradients, columns = recording.result
        weights = _weights(self.agent)
        if any(weights[name] is not tensor for name, tensor in self._weights.items()):
            raise NotCompilable("it replaces a buffer of the agent")
        for name, column in columns.items():
            if column.shape[:1] != rows["action"].shape[:1]:
                raise NotCompilable(f"its {name} do not have an entry for every row of the batch")
        indices = {index: gradient for index, gradient in enumerate(gradients) if gradient is not None}
        buffers = {f"{_BUFFER}{index}": value for index, (_, value) in enumerate(output.buffers)}
        outputs = numbers | {f"gradient {index}": gradient for index, gradient in indices.items()} | columns | buffers
        return _Loss(CompiledFunction(recording, inputs, outputs), output, numbers, indices, columns, buffers)

    @contextmanager
    def _drawing_nothing(self) -> Iterator[None]:
        """Leave generators as they were: a run that is resumed compiles once more."""
        before, globally = self._random.get_state(), torch.get_rng_state() if self._samples_globally else None
        try:
            yield
        finally:
            self._random.set_state(before)
            if globally is not None:
                torch.set_rng_state(globally)

    def _loss_and_gradients(self, rows: Batch, share: float) -> Any:
        known = set(rows)
        output = check_loss_output(self.objective.call(self.loss, self.agent, rows, self._random), self.objective.name)
        numbers = {"loss": output.value * share}
        numbers |= {_metric(name): entry * share for name, entry in output.metrics.items() if isinstance(entry, Tensor)}
        gradients = torch.autograd.grad(numbers["loss"], self.objective.parameters, allow_unused=True)
        columns = {name: rows[name] for name in rows if name not in known}
        if output.priorities is not None:
            columns[_PRIORITIES] = output.priorities
        return output, numbers, gradients, columns

    def _compare_with_torch(self, batch: Batch) -> None:
        """Refuse a graph that gives other gradients than torch, for another batch than it was recorded with."""
        block = self.blocks[0]
        with self._drawing_nothing():
            self(dict(batch), only_first=True)
        with self._drawing_nothing(), without_fast_paths(), use_tape(None):
            expected = self._loss_and_gradients(_rows_of(batch, block.rows), block.share)[2]
        if not all(map(_are_close, block.gradients, expected)):
            raise NotCompilable("its graph gives other gradients than torch")

    def _is_mean_over_rows(self, batch: Batch) -> bool:
        """Whether the gradients of all rows are the sum of those of the blocks, with the same random numbers."""
        with self._drawing_nothing():
            self(dict(batch))
        gradients = [gradient.clone() for gradient in self.blocks[0].gradients]
        whole = _Block(self._compile(dict(batch), 1.0), slice(None), 1.0, len(batch["action"]), {})
        whole.bind_memory(self._weights, [torch.zeros_like(gradient) for gradient in gradients])
        whole.set_batch(dict(_arrays(batch)))
        whole.join_random(self.blocks)
        whole.run()
        return all(map(_are_close, gradients, whole.gradients))

    def __call__(self, batch: Batch, *, only_first: bool = False) -> LossOutput:
        """Set the gradients, add the columns to the batch, and return what the loss returns.

        Args:
            batch: the batch.
            only_first: leave out all blocks but the first.
        """
        self._bind_memory()
        arrays = dict(_arrays(batch))
        first, *others = blocks = self.blocks[:1] if only_first else self.blocks
        for block in blocks:
            block.set_batch(arrays)
            block.draw(None if block is first else first)
        if first.is_large:
            run_parallel(_Block.run, blocks)
        else:
            for block in blocks:
                block.run()
        for block in others:
            torch._foreach_add_(first.gradients, block.gradients)
        numbers = {name: sum(float(block.numbers[name]) for block in blocks) for name in first.numbers}
        metrics = {name: numbers.get(_metric(name), entry) for name, entry in self._output.metrics.items()}
        columns = {name: torch.from_numpy(column) for name, column in self._columns.items()}
        priorities = columns.pop(_PRIORITIES, None)
        batch |= columns
        values = map(torch.from_numpy, first.buffers.values())
        buffers = [(buffer, value) for (buffer, _), value in zip(self._output.buffers, values, strict=True)]
        return LossOutput(torch.tensor(numbers["loss"]), metrics, priorities, buffers)

    def _bind_memory(self) -> None:
        """Bind the memory of weights and gradients, if it is not what it was at the last call."""
        gradients = [parameter.grad for parameter in self.objective.parameters]
        addresses = [tensor.data_ptr() for tensor in (*self._weights.values(), *gradients)]  # type: ignore[union-attr]
        if addresses != self._addresses:
            self._addresses = addresses
            for index, block in enumerate(self.blocks):
                own = gradients if index == 0 else list(map(torch.zeros_like, gradients))  # type: ignore[arg-type]
                block.bind_memory(self._weights, own)  # type: ignore[arg-type]


class _Block:
    """Some rows of a batch, and what a loss returns for them."""

    def __init__(
        self, loss: _Loss, rows: slice, share: float, num_rows: int, columns: Mapping[str, np.ndarray]
    ) -> None:
        self.rows, self.share, self._num_rows, self.is_large = rows, share, num_rows, loss.function.is_large
        self._call, self._with_gradient = Call(loss.function), list(loss.gradients)
        self.numbers = {name: np.zeros(number.shape, _dtype(number)) for name, number in loss.numbers.items()}
        self.gradients: list[Tensor] = []
        """One for every parameter."""
        self._columns = {
            name: columns[name][rows] if name in columns else np.empty(column.shape, _dtype(column))
            for name, column in loss.columns.items()
        }
        self.buffers = {name: np.empty(value.shape, _dtype(value)) for name, value in loss.buffers.items()}
        inputs = loss.function.inputs
        self._weights = [name for name in inputs if name.startswith(_WEIGHTS)]
        self._leaves = [name for name in inputs if name.startswith(_COLUMN)]
        for name, array in [*self.numbers.items(), *self._columns.items(), *self.buffers.items()]:
            self._call.bind_output(name, array)

    def bind_memory(self, weights: Mapping[str, Tensor], gradients: list[Tensor]) -> None:
        """Read weights from, and write gradients to, the memory of these tensors."""
        for name in self._weights:
            self._call.bind_input(name, weights[name].detach().numpy())
        for index in self._with_gradient:
            self._call.bind_output(f"gradient {index}", gradients[index].numpy())
        self.gradients = gradients

    def set_batch(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Use its rows of a batch in the next call."""
        for name in self._leaves:
            self._call.copy_input(name, arrays[name][self.rows])

    def draw(self, first: _Block | None = None) -> None:
        """Draw the random numbers of the next call. Those that are not by row are the same as in the first block."""
        for name, draw in self._call.function.draws.items():
            drawn = draw().numpy() if first is None or self._is_by_row(draw) else first._call.arrays[name]
            self._call.copy_input(name, drawn)

    def join_random(self, blocks: Sequence[_Block]) -> None:
        """Use the random numbers of the last call for these blocks, which are all rows, in the next one for all."""
        for name, draw in self._call.function.draws.items():
            arrays = [block._call.arrays[name] for block in blocks]
            self._call.copy_input(name, np.concatenate(arrays) if self._is_by_row(draw) else arrays[0])

    def _is_by_row(self, draw: Draw) -> bool:
        return draw.result.shape[:1] == (self._num_rows,)

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


def _arrays(batch: Batch) -> Iterator[tuple[str, np.ndarray]]:
    return ((name, leaf.numpy()) for name, leaf in _leaves(batch))


def _rows_of(batch: Batch, rows: slice) -> Batch:
    return tree_map(lambda column: column[rows], dict(batch))


def _perturbed(batch: Batch) -> Batch:
    """Return another batch of the same size: rows in reverse order, and numbers that are scaled each by another factor.

    So columns that happen to be constant, such as weights or masks, are not.
    """
    random = torch.Generator().manual_seed(0)

    def perturb(column: Tensor) -> Tensor:
        if column.dtype == torch.bool:
            return torch.rand(column.shape, generator=random) < 0.5
        flipped = column.flip(0)
        return flipped * (0.5 + torch.rand(column.shape, generator=random)) if column.is_floating_point() else flipped

    return tree_map(perturb, dict(batch))


def _are_close(gradient: Tensor, expected: Tensor | None) -> bool:
    """Whether a gradient is the expected one. One with NaN never is."""
    if expected is None:
        return True
    return bool((gradient - expected).abs().max() <= _TOLERANCE * (expected.abs().max() + _TOLERANCE))


def _dtype(tensor: Tensor) -> Any:
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype


def _metric(name: str) -> str:
    return f"metric {name}"


def _is_plain(loss: Any) -> bool:
    """Whether a loss is a function, perhaps with arguments given: the state of objects and closures may change."""
    while isinstance(loss, partial):
        loss = loss.func
    return isinstance(loss, FunctionType) and loss.__closure__ is None
