"""Gradients of what is worked out in numpy, beside torch's autograd.

The minibatches of reinforcement learning are small: torch takes longer to note, find and begin its operations than to
do them, and the BLAS of numpy is often the faster one. So where a learner takes a step, plain networks and the
probabilities of actions are worked out in numpy. Autograd sees what comes out of them as the beginning of the loss;
from there back to the parameters the tape goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray
Back = Callable[[Array], None]
"""Adds, for the gradient of what came out, to the gradients of what went in."""


class Tape:
    """What was worked out in numpy since it began, in that order, and how to go back."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Back]] = []
        self._known: set[int] = set()

    def note(self, found: Array, back: Back) -> Tensor:
        """Return what was worked out as the beginning of what autograd does with it."""
        given = torch.from_numpy(found).requires_grad_()
        self.steps.append((given, back))
        self._known.add(id(given))
        return given

    def knows(self, x: Tensor) -> bool:
        """Whether a tensor came out of a step."""
        return id(x) in self._known

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those of all parameters that it depends on."""
        loss.backward()
        for given, back in reversed(self.steps):
            if given.grad is not None:
                back(given.grad.numpy())
        self.steps.clear()
        self._known.clear()


def add_gradient(to: Tensor, gradient: Array) -> None:
    """Add to the gradient of a parameter, or of what a step gave."""
    if not to.requires_grad:
        return
    if to.grad is None:
        to.grad = torch.from_numpy(np.ascontiguousarray(gradient))
    else:
        into = to.grad.numpy()
        into += gradient


class _Now(threading.local):
    tape: Tape | None = None


_now = _Now()


@contextmanager
def taping(tape: Tape | None) -> Iterator[Tape | None]:
    """Have what can be worked out in numpy go by a tape; or with None by autograd, whose gradients have gradients."""
    before, _now.tape = _now.tape, tape
    try:
        yield tape
    finally:
        _now.tape = before


def tape_for(x: Tensor) -> Tape | None:
    """Return the tape that what is done to a tensor is to be noted on, if it is."""
    tape = _now.tape
    if tape is None or not torch.is_grad_enabled() or x.dtype != torch.float32 or x.device.type != "cpu":
        return None
    return tape if not x.requires_grad or tape.knows(x) else None


def in_numpy(x: Tensor) -> bool:
    """Whether something can be done to a tensor in numpy, without gradients."""
    return not torch.is_grad_enabled() and x.dtype == torch.float32 and x.device.type == "cpu"
