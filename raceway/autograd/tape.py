"""A tape of operations computed in numpy, with gradients, beside torch's autograd.

The minibatches of reinforcement learning are small: torch takes longer to record and dispatch its operations than to
compute them, and numpy's BLAS is often the faster one. So in a learner's gradient step, plain networks and the
log-probabilities of actions are computed in numpy. For autograd their outputs are the leaves of the loss; from these
leaves back to the parameters, the tape propagates the gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from raceway.autograd.fast_paths import fast_paths_enabled

_DTYPES = (torch.float32, torch.uint8)  # of vectors and of images

Array = np.ndarray
Backward = Callable[[Array], None]
"""Takes the gradient of an operation's output, and adds to the gradients of its inputs."""


class Tape:
    """The operations computed in numpy since the last backward pass, in order, each with its backward function."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Backward]] = []
        self._output_ids: set[int] = set()

    def record(self, output: Array, backward: Backward) -> Tensor:
        """Record an operation, and return its output as a leaf tensor for autograd."""
        leaf = torch.from_numpy(output).requires_grad_()
        self.steps.append((leaf, backward))
        self._output_ids.add(id(leaf))
        return leaf

    def is_output(self, x: Tensor) -> bool:
        """Whether a tensor is the output of a recorded operation."""
        return id(x) in self._output_ids

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those of all parameters that it depends on."""
        loss.backward()
        for leaf, backward in reversed(self.steps):
            if leaf.grad is not None:
                backward(leaf.grad.numpy())
        self.steps.clear()
        self._output_ids.clear()


def add_gradient(to: Tensor, gradient: Array) -> None:
    """Add to the gradient of a parameter, or of the output of a recorded operation."""
    if not to.requires_grad:
        return
    if to.grad is None:
        to.grad = torch.from_numpy(np.ascontiguousarray(gradient))
    else:
        total = to.grad.numpy()
        total += gradient


def gradient_array(parameter: Tensor) -> Array:
    """Return the gradient of a parameter, to be added to; zeros if there is none yet."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad.numpy()


class _ThreadLocal(threading.local):
    tape: Tape | None = None


_active = _ThreadLocal()


@contextmanager
def use_tape(tape: Tape | None) -> Iterator[Tape | None]:
    """Record numpy operations on a tape; with None, use autograd alone, which can differentiate twice."""
    before, _active.tape = _active.tape, tape
    try:
        yield tape
    finally:
        _active.tape = before


def tape_for(x: Tensor) -> Tape | None:
    """Return the tape on which an operation on `x` is to be recorded, or None if autograd must handle it."""
    tape = _active.tape
    if (
        tape is None
        or not fast_paths_enabled()
        or not torch.is_grad_enabled()
        or x.dtype not in _DTYPES
        or x.device.type != "cpu"
    ):
        return None
    return tape if not x.requires_grad or tape.is_output(x) else None


def can_use_numpy(x: Tensor) -> bool:
    """Whether an operation on `x` needs no gradient and can be computed in numpy."""
    plain = x.dtype in _DTYPES and x.device.type == "cpu"
    return plain and not torch.is_grad_enabled() and fast_paths_enabled()
