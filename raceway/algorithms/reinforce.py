"""REINFORCE: follow the gradient of the return of whole episodes.

Paper: Williams 1992, https://doi.org/10.1007/BF00992696

    episodes -> returns        on every worker
       -> one Adam step        on the learner
       -> weights              to all workers

Differs from the paper: Adam instead of plain ascent, and returns are standardised within each episode instead of being
compared with a baseline.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from gymnasium import spaces
from torch import Tensor

from raceway.agents import Policy
from raceway.algorithms.base import AlgorithmConfig, Context, algorithm
from raceway.checks import check_int
from raceway.envs import Slots
from raceway.flow import Iter, ParIter
from raceway.ops import AddReturns, ConcatBatches, TrainOneStep, TrainStats
from raceway.rl import Batch


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    """Settings of REINFORCE."""

    episodes_per_iter: int = 100
    """Episodes collected for one step of the optimiser."""
    learner_threads: int = 2
    """Threads of the learner. Changes the last bits of the numbers."""
    lr: float | None = None  # type: ignore[assignment]
    """Adam step size (1e-2 for choices, 3e-4 for continuous actions)."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers (128 for choices, 256,256 for continuous actions)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("episodes_per_iter", self.episodes_per_iter)

    def for_env(self, slots: Slots) -> Self:
        """Fill in what suits choices or continuous actions."""
        cfg = super().for_env(slots)
        continuous = isinstance(slots.action_space, spaces.Box)
        lr = (3e-4 if continuous else 1e-2) if self.lr is None else self.lr
        hidden = ((256, 256) if continuous else (128,)) if self.hidden is None else self.hidden
        return dataclasses.replace(cfg, lr=lr, hidden=hidden)

    @property
    def amount(self) -> dict[str, Any]:
        """Play whole episodes."""
        return {"num_episodes": self.episodes_per_iter}


def loss(policy: Policy, batch: Batch) -> Tensor:
    """Return the mean over episodes of -Σₜ log π(aₜ|sₜ) Gₜ; the batch is [N]."""
    return -(policy.log_prob(batch) * batch["return"]).sum() / len(batch["length"])


@algorithm("reinforce", Config)
def reinforce(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        rollouts.for_each(AddReturns(cfg.gamma))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(TrainOneStep(ctx.learner, loss))
        .for_each(ctx.weights())
    )
