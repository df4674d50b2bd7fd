"""Recording which operations a function of tensors performs, those of its backward pass included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raceway.autograd.fast_paths import without_fast_paths
from raceway.autograd.tape import use_tape


class NotCompilable(Exception):
    """A function does something that a graph cannot: the message says what."""


@dataclass(frozen=True)
class Operation:
    """One operation of torch, such as `aten.mul.Tensor`, with its arguments and results."""

    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    outputs: Sequence[Any]

    @property
    def name(self) -> str:
        """The name without the overload, such as `mul`; in-place operations have the name of the others."""
        return str(self.function._schema.name).removeprefix("aten::").rstrip("_")


@dataclass
class Draw:
    """Random numbers that a function draws: one operation, such as `aten.randn.generator`, of constants alone."""

    function: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    result: Tensor

    def __call__(self) -> Tensor:
        """Draw again."""
        drawn: Tensor = self.function(*self.args, **self.kwargs)
        return drawn


@dataclass
class Recording:
    """What a function did: its operations in order, the random numbers that it drew, and what it returned."""

    operations: list[Operation]
    draws: list[Draw]
    result: Any
    depends: set[int]
    """The ids of the tensors that depend on the inputs or on random numbers. All others are constants."""
    tensors: list[Any]
    """All tensors that occurred, so that no id is used twice."""


def record(function: Callable[[], Any], inputs: Sequence[Tensor]) -> Recording:
    """Call a function and record its operations on the inputs, without fast paths.

    What the function reads besides the inputs and random numbers is taken for constant.

    Raises:
        NotCompilable: it reads a number from a tensor that depends on the inputs, or changes a tensor in place.
    """
    recorder = _Recorder(inputs)
    with without_fast_paths(), use_tape(None), recorder:
        result = function()
    return Recording(recorder.operations, recorder.draws, result, recorder.depends, recorder.tensors)


class _Recorder(TorchDispatchMode):
    """Records the operations on tensors that depend on some inputs."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.draws: list[Draw] = []
        self.depends = set(map(id, inputs))
        self.tensors: list[Any] = list(inputs)
        self._computed: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not import torch's compiler, which takes two seconds, to tell it that this class is none of its."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        read = [each for each in flat([args, list(kwargs.values())]) if isinstance(each, Tensor)]
        outputs = [each for each in flat(result) if isinstance(each, Tensor)]
        self.tensors += read + outputs
        depends = any(id(each) in self.depends for each in read)
        name = str(func._schema.name)
        if torch.Tag.nondeterministic_seeded in func.tags:
            if depends:
                raise NotCompilable(f"it draws random numbers by {name} from tensors")
            self.draws.append(Draw(func, args, kwargs, result))
            self.depends.add(id(result))
        elif depends and name.removeprefix("aten::") not in _OF_SHAPES:
            if not outputs:
                raise NotCompilable(f"it reads a number from a tensor ({name})")
            if func._schema.is_mutable and not self._is_alone(args[0]):
                raise NotCompilable(f"it changes a tensor in place ({name})")
            self.operations.append(Operation(func, args, kwargs, list(flat(result))))
            self.depends |= set(map(id, outputs))
            self._computed |= set(map(id, outputs))
        return result

    def _is_alone(self, tensor: Any) -> bool:
        """Whether a tensor was computed here, and no other one shares its memory."""
        memory = tensor.untyped_storage().data_ptr()
        sharing = {id(each) for each in self.tensors if each.untyped_storage().data_ptr() == memory}
        return sharing == {id(tensor)} and id(tensor) in self._computed


_OF_SHAPES = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}  # results are constants


def flat(value: Any) -> list[Any]:
    """Return the entries of nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        return [entry for part in value for entry in flat(part)]
    return [value]
