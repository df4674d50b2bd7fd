"""Objectives: losses with the parts of the agent that they train; and the target networks beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from raceway.checks import check_fraction, check_int
from raceway.errors import ConfigError

Metrics = dict[str, Any]
Schedule = Callable[[float], float]
"""A setting as a function of the run's progress in environment steps, or in gradient steps without an environment."""


LossAndMetrics = tuple[Tensor, dict[str, Tensor]]
"""The value of a loss, and numbers to report by name."""


class LossOutput(NamedTuple):
    """What a loss returns, if it is more than the value."""

    value: Tensor
    """The loss, a single number."""
    metrics: Metrics = {}  # noqa: RUF012 - never changed
    """Numbers to report, by name."""
    priorities: Tensor | None = None
    """For a batch from prioritised replay: the new priority of every row, [N]."""
    buffers: Sequence[tuple[Tensor, Tensor]] = ()
    """Buffers of the agent, such as running statistics, and the values that they get after the gradient step."""


Loss = Callable[..., Tensor | tuple[Tensor, Metrics] | LossOutput]
"""Takes an agent and a batch of tensors, and returns the loss: its value, value and metrics, or a `LossOutput`.

A loss that needs random numbers declares a parameter `random=injected`, and gets the learner's `torch.Generator`.
"""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss, and how it is minimised. What is not set is as in the learner's settings."""

    loss: Loss
    parts: Sequence[str] | None = None
    """The parts of the agent that it trains. By default the one with the objective's name."""
    every: int = 1
    """Take a step in every n-th update only."""
    lr: float | Schedule | None = None
    """Learning rate."""
    optimiser: str | None = None
    """Optimiser: adam, or a class of `torch.optim` by its name."""
    max_grad_norm: float | None = None
    """Maximum norm for gradient clipping."""
    options: dict[str, Any] | None = None
    """Further arguments of the optimiser, such as `betas` or `weight_decay`."""
    whole_batch: bool = False
    """Whether the loss has statistics of the batch, so that a compiled one may not be computed in blocks of rows."""

    def __post_init__(self) -> None:
        check_int("every", self.every)


@dataclass(frozen=True)
class Target:
    """Target networks: copies of some parts of the agent, `agent.target`, that follow the trained ones.

    Args:
        parts: the parts; by default the whole agent.
        tau: the share τ of the trained weights in each update: θ' ← τ θ + (1 - τ) θ'. Buffers are copied.
        every: gradient steps between two updates.
    """

    parts: str | Sequence[str] | None = None
    tau: float = 1.0
    every: int = 1

    def __post_init__(self) -> None:
        check_int("every", self.every)
        check_fraction("tau", self.tau)
        if self.tau == 0:
            raise ConfigError("tau must be above 0, or the target networks would never change")

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the parts, or None for the whole agent."""
        return (self.parts,) if isinstance(self.parts, str) else None if self.parts is None else tuple(self.parts)


def check_loss_output(result: Any, name: str) -> LossOutput:
    """Return the result of a loss as a `LossOutput`, or raise an error that names the loss."""
    if isinstance(result, LossOutput):
        return result
    if isinstance(result, tuple) and len(result) == 2:
        result = LossOutput(*result)
    elif isinstance(result, Tensor):
        result = LossOutput(result)
    if not isinstance(result, LossOutput) or not isinstance(result.value, Tensor) or result.value.numel() != 1:
        raise ConfigError(
            f"the loss {name} returned {result!r}; expected a single number as a tensor, or (value, metrics)"
        )
    return result


def loss_name(loss: Any) -> str:
    """Return the name of a loss for errors and metrics."""
    while hasattr(loss, "func"):  # a partial
        loss = loss.func
    return getattr(loss, "__name__", type(loss).__name__)
