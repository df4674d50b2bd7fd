"""Adam, as Kingma & Ba 2014 (https://arxiv.org/abs/1412.6980) have it.

torch's own optimisers import its compiler when they are made, which takes 2.4 s: half of the time from the prompt to
the end of a short run. This one is the same arithmetic on one long vector, of which the parameters and their gradients
are made to be parts: for the small networks of reinforcement learning that takes a third of the time of torch's
operations for lists of tensors, and clipping the norm of the gradient a sixth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Adam:
    """Takes steps against gradients, scaled by their running moments."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.lr, self.betas, self.epsilon = lr, betas, epsilon
        self.steps = 0
        self.parameters = list(parameters)
        self.vectors = [_Vector([one for one in self.parameters if one.dtype == kind]) for kind in self._kinds()]

    def _kinds(self) -> list[torch.dtype]:
        return list(dict.fromkeys(one.dtype for one in self.parameters))

    def zero_grad(self) -> None:
        """Make the gradients zero, to be added to."""
        for vector in self.vectors:
            vector.zero_grad()

    @torch.no_grad()
    def clip(self, most: float) -> float:
        """Scale the gradients so that their norm is at most so much, and return what it was."""
        norm = math.sqrt(sum(float(vector.gradient.norm()) ** 2 for vector in self.vectors))
        if norm > most:
            for vector in self.vectors:
                vector.gradient *= most / norm
        return norm

    @torch.no_grad()
    def step(self) -> None:
        """Take a step."""
        self.steps += 1
        beta, other = self.betas
        for one in self.vectors:
            one.first.lerp_(one.gradient, 1 - beta)
            one.second.mul_(other).addcmul_(one.gradient, one.gradient, value=1 - other)
            below = one.second.sqrt().div_(math.sqrt(1 - other**self.steps)).add_(self.epsilon)
            one.values.addcdiv_(one.first, below, value=-self.lr / (1 - beta**self.steps))

    def state(self) -> Any:
        """Return what is needed to go on from here."""
        moments = [(one.first.cpu().numpy().copy(), one.second.cpu().numpy().copy()) for one in self.vectors]
        return {"steps": self.steps, "moments": moments}

    def restore(self, state: Any) -> None:
        """Go on from there."""
        self.steps = state["steps"]
        for one, (first, second) in zip(self.vectors, state["moments"], strict=True):
            one.first.copy_(torch.from_numpy(np.array(first)))
            one.second.copy_(torch.from_numpy(np.array(second)))


class _Vector:
    """Parameters of one type of number, behind one another."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.values = torch.cat([one.detach().reshape(-1) for one in parameters])
        self.gradient, self.first, self.second = (torch.zeros_like(self.values) for _ in range(3))
        self._places: list[Tensor] = []
        self._link()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the parameters parts of the vector again: each was sent by itself."""
        self.__dict__.update(state)
        self._places = []
        self._link()

    def _link(self) -> None:
        begin = 0
        for one in self.parameters:
            end = begin + one.numel()
            one.data = self.values[begin:end].view_as(one)
            self._places.append(self.gradient[begin:end].view_as(one))
            begin = end
        self.zero_grad()

    def zero_grad(self) -> None:
        self.gradient.zero_()
        for one, place in zip(self.parameters, self._places, strict=True):
            one.grad = place
