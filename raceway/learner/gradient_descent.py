"""Plain gradient descent, with the interface of `Adam`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class GradientDescent:
    """Descends gradients: θ ← θ - α g. torch's own would import its compiler, as `adam` explains."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self.parameters, self.lr, self.steps = list(parameters), lr, 0
        self.zero_grad()

    def zero_grad(self) -> None:
        """Set the gradients to zero, to be accumulated."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients to a norm of at most `max_norm`, and return the norm before."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = math.sqrt(sum(float(gradient.norm()) ** 2 for gradient in gradients))
        if norm > max_norm:
            for gradient in gradients:
                gradient *= max_norm / norm
        return norm

    @torch.no_grad()
    def step(self) -> None:
        """Take one gradient step."""
        self.steps += 1
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=self.lr)

    def state(self) -> Any:
        """Return the step count, for a checkpoint."""
        return {"steps": self.steps, "parameters": {}}

    def restore(self, state: Any) -> None:
        """Restore a state."""
        self.steps = state["steps"]
