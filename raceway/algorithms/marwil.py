"""MARWIL: monotonic advantage re-weighted imitation learning, behaviour cloning that prefers actions with an advantage.

Paper: Wang et al. 2018, https://papers.nips.cc/paper/2018/hash/4aec1b3435c52abbdf8334ea0e7141e0-Abstract.html

    minibatches of a dataset, with returns     on every reader
       -> critic, actor                        on the learner, one Adam step each
       -> weights                              to evaluations

Differs from the paper: advantages are divided by the root of their mean square in the minibatch, not by a moving
average; returns of truncated episodes are bootstrapped; policy and critic share no layers. With β = 0 the policy is
that of bc, bit for bit.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from raceway.agents import ActorCritic, Spaces
from raceway.agents.builders import actor
from raceway.agents.critics import value_network
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import DatasetConfig
from raceway.algorithms.sources import DatasetSource
from raceway.flow import Iter, ParIter
from raceway.ops import DatasetSettings, LossAndMetrics, Objective, TrainOneStep, TrainStats
from raceway.rl import Batch, exponential_weights, scaled_advantages
from raceway.settings.field_types import Discount, NonNegativeFloat, PositiveFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(DatasetConfig):
    """Settings of MARWIL."""

    clip_actions: ClassVar[bool] = True
    lr: PositiveFloat = 1e-3
    """Learning rate."""
    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers, of the policy and of the critic."""
    batch_size: PositiveInt = 64
    """Steps of the dataset per gradient step."""
    gamma: Discount = 0.99
    """Discount factor γ."""
    beta: NonNegativeFloat = 1.0
    """How strongly advantages weigh, β: 0 is behaviour cloning."""

    @property
    def reading(self) -> DatasetSettings:
        """How the dataset is read: with returns."""
        return dataclasses.replace(super().reading, gamma=self.gamma, final_obs=True)


def agent(spaces: Spaces, cfg: Config) -> ActorCritic:
    """Return the untrained agent."""
    policy = actor(spaces, cfg).actor
    policy.unused_settings = {}  # the critic has hidden layers in any case
    return ActorCritic(policy, value_network(policy.network_space, cfg.hidden or (), "relu"))


def critic_loss(agent: ActorCritic, batch: Batch) -> LossAndMetrics:
    """Return (R - V(s))², averaged over the batch, [N], where R is bootstrapped if its episode was truncated.

    Leaves R - V(s), scaled to a mean square of 1, as advantages for `actor_loss`.
    """
    with torch.no_grad():
        target = batch["return"] + batch["final_discount"] * agent.values(batch["final_obs"])
    errors = target - agent.values(batch["obs"])
    batch["advantage"] = scaled_advantages(errors)
    return errors.square().mean(), {"mean_advantage": errors.detach().mean()}


def actor_loss(agent: ActorCritic, batch: Batch, *, beta: float) -> Tensor:
    """Return -exp(β A) log π(a|s), averaged over the batch, [N]."""
    return -(exponential_weights(batch["advantage"], beta) * agent.actor.log_prob(batch)).mean()


@algorithm("marwil", Config, agent=agent, source=DatasetSource)
def marwil(minibatches: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    critic = Objective(loss=critic_loss, whole_batch=True)
    train = TrainOneStep(ctx.learner, critic=critic, actor=partial(actor_loss, beta=cfg.beta))
    return (
        minibatches.gather_sync()
        .flatten()
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights())
    )
