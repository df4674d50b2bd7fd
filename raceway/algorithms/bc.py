"""BC: behaviour cloning, supervised learning of a policy from recorded episodes.

Paper: Pomerleau 1988, https://proceedings.neurips.cc/paper/1988/hash/812b4ba287f5ee0bc9d43bbf5bbe87fb-Abstract.html

    minibatches of a dataset     on every reader
       -> one Adam step          on the learner
       -> weights                to evaluations

Differs from the paper: maximum likelihood of actions of any kind, with Adam, instead of a fit of one output per
direction by plain gradient descent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raceway.agents import Agent
from raceway.agents.builders import actor
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import DatasetConfig
from raceway.algorithms.sources import DatasetSource
from raceway.flow import Iter, ParIter
from raceway.ops import TrainOneStep, TrainStats
from raceway.rl import Batch
from raceway.settings.field_types import PositiveFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(DatasetConfig):
    """Settings of BC."""

    clip_actions: ClassVar[bool] = True
    lr: PositiveFloat = 1e-3
    """Learning rate."""
    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers."""
    batch_size: PositiveInt = 64
    """Steps of the dataset per gradient step."""


def loss(agent: Agent, batch: Batch) -> Tensor:
    """Return -log π(a|s), averaged over the batch, [N]."""
    return -agent.actor.log_prob(batch).mean()


@algorithm("bc", Config, agent=actor, source=DatasetSource)
def bc(minibatches: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        minibatches.gather_sync()
        .flatten()
        .for_each(TrainOneStep(ctx.learner, loss), **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights())
    )
