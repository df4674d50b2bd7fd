"""IQL: implicit Q-learning from a dataset, whose targets never need the value of an action that it lacks.

Paper: Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169

    minibatches of a dataset                       on every reader
       -> value, actor, critics                    on the learner, one Adam step each
       -> target critics, by Polyak averaging
       -> weights                                  to evaluations

Differs from the paper: the learning rate of the policy is constant unless lr_end is set, which is for all parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from raceway.agents import Agent, Spaces
from raceway.agents.builders import actor_and_critics
from raceway.agents.critics import value_network
from raceway.agents.distributions import BoundedGaussian
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorDatasetConfig
from raceway.algorithms.sources import DatasetSource
from raceway.flow import Iter, ParIter
from raceway.ops import AddDiscounts, LossAndMetrics, Target, TrainOneStep, TrainStats
from raceway.rl import Batch, expectile_loss, exponential_weights
from raceway.settings.field_types import Fraction, NonNegativeFloat, PositiveFloat


@dataclass(frozen=True, kw_only=True)
class Config(ActorDatasetConfig):
    """Settings of IQL."""

    expectile: Fraction = 0.7
    """Expectile τ of the Q-values of the dataset's actions that the value of a state is: 0.5 is their mean."""
    beta: NonNegativeFloat = 3.0
    """How strongly advantages weigh in the policy's loss, β: 0 is behaviour cloning."""
    max_weight: PositiveFloat = 100.0
    """Limit of the weights exp(β A)."""


class ImplicitQ(Agent):
    """A Gaussian policy, two critics Q(s, a), and the value V(s)."""

    critics: nn.Module
    value: nn.Module

    def values(self, obs: Tensor) -> Tensor:
        """Return V(s), [N]."""
        values: Tensor = self.value(obs)
        return values.squeeze(-1)


def agent(spaces: Spaces, cfg: Config) -> ImplicitQ:
    """Return the untrained agent."""
    actor, critics = actor_and_critics(spaces, cfg, BoundedGaussian(spaces.action))
    actor.unused_settings = {}  # V has hidden layers in any case
    return ImplicitQ(actor, critics=critics, value=value_network(actor.network_space, cfg.hidden or (), "relu"))


def value_loss(agent: ImplicitQ, batch: Batch, *, expectile: float) -> LossAndMetrics:
    """Return |τ - 1(A < 0)| A² with A = min Q'(s, a) - V(s), averaged over the batch, [N].

    Q' are the target critics. Leaves A, without a gradient, as advantages for `actor_loss`.
    """
    with torch.no_grad():
        q_values = agent.target.critics(batch["obs"], batch["action"]).amin(0)
    errors = q_values - agent.values(batch["obs"])
    batch["advantage"] = errors.detach()
    return expectile_loss(errors, expectile).mean(), {"mean_advantage": errors.detach().mean()}


def actor_loss(agent: ImplicitQ, batch: Batch, *, beta: float, max_weight: float) -> Tensor:
    """Return -min(exp(β A), limit) log π(a|s), averaged over the batch, [N]."""
    return -(exponential_weights(batch["advantage"], beta, max_weight) * agent.actor.log_prob(batch)).mean()


def critics_loss(agent: ImplicitQ, batch: Batch) -> LossAndMetrics:
    """Return Σᵢ (Qᵢ(s, a) - y)² with y = r + γ V(s'), averaged over the batch, [N]."""
    with torch.no_grad():
        target = batch["reward"] + batch["discount"] * agent.values(batch["next_obs"])
    q_values = agent.critics(batch["obs"], batch["action"])
    return (q_values - target).square().mean(-1).sum(), {"q_values": q_values.detach().mean()}


@algorithm("iql", Config, agent=agent, actions=("box",), source=DatasetSource)
def iql(minibatches: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    train = TrainOneStep(
        ctx.learner,
        value=partial(value_loss, expectile=cfg.expectile),
        actor=partial(actor_loss, beta=cfg.beta, max_weight=cfg.max_weight),
        critics=critics_loss,
        targets=Target("critics", tau=cfg.tau, every=cfg.target_every),
    )
    return (
        minibatches.for_each(AddDiscounts(cfg.gamma))
        .gather_sync()
        .flatten()
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights())
    )
