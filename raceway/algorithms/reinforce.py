"""REINFORCE: Monte Carlo policy gradient.

Paper: Williams 1992, https://doi.org/10.1007/BF00992696

    whole episodes -> returns     on every worker
       -> one Adam step           on the learner
       -> weights                 to all workers

Differs from the paper: Adam instead of plain gradient ascent, and returns are standardised within each episode instead
of having a baseline subtracted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from gymnasium import spaces
from torch import Tensor

from raceway.agents import Agent
from raceway.agents.builders import actor
from raceway.algorithms.config import AlgorithmConfig
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.envs import Slots
from raceway.flow import Iter, ParIter
from raceway.ops import AddReturns, ConcatBatches, TrainOneStep, TrainStats
from raceway.rl import Batch, Episodes
from raceway.settings.field_types import PositiveFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    """Settings of REINFORCE."""

    episodes_per_iter: PositiveInt = 100
    """Episodes per iteration, for one gradient step."""
    learner_threads: PositiveInt = 2
    """CPU threads of the learner. Affects the last bits of the results."""
    lr: PositiveFloat | None = None  # type: ignore[assignment]
    """Learning rate (1e-2 for discrete, 3e-4 for continuous actions)."""
    hidden: Widths | None = None
    """Widths of the hidden layers (128 for discrete, 256,256 for continuous actions)."""

    def for_env(self, slots: Slots) -> Self:
        """Fill in the learning rate and the network for discrete or continuous actions."""
        cfg = super().for_env(slots)
        continuous = isinstance(slots.action_space, spaces.Box)
        lr = (3e-4 if continuous else 1e-2) if self.lr is None else self.lr
        hidden = ((256, 256) if continuous else (128,)) if self.hidden is None else self.hidden
        return dataclasses.replace(cfg, lr=lr, hidden=hidden)

    @property
    def rollout_size(self) -> dict[str, Any]:
        """Whole episodes."""
        return {"num_episodes": self.episodes_per_iter}


def loss(agent: Agent, batch: Batch) -> Tensor:
    """Return -Σₜ log π(aₜ|sₜ) Gₜ, averaged over episodes; the batch is [N]. G is the standardised return."""
    return -(agent.actor.log_prob(batch) * batch["return"]).sum() / len(batch["length"])


@algorithm("reinforce", Config, agent=actor, recurrent=True)
def reinforce(rollouts: ParIter[Episodes], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        rollouts.for_each(AddReturns(cfg.gamma))  # on every worker, where the episodes were collected
        .gather_sync()  # synchronous; `gather_async()` takes results in order of completion
        .combine(ConcatBatches())
        .for_each(TrainOneStep(ctx.learner, loss))  # in the driver
        .for_each(ctx.weights())  # to all workers
    )
