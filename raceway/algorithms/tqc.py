"""TQC: truncated quantile critics, SAC with distributions of the return whose upper end is cut off.

Paper: Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269

    store:    rollouts -> transitions                       on every worker
                 -> replay
    replay:   sampled batches
                 -> critics, actor, temperature             on the learner, one Adam step each
                 -> target critics, by Polyak averaging
                 -> weights of the actor                    to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the paper: two critics instead of five, as in Stable-Baselines3's, and layers of 256; actions are uniformly
random until training starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from raceway.agents import Agent, Explorer, Sample, Spaces, UniformWarmUp
from raceway.agents.builders import squashed_actor_and_critics
from raceway.agents.temperature import Temperature
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorReplayConfig, HindsightConfig
from raceway.flow import Iter, ParIter, union
from raceway.injection import injected
from raceway.ops import (
    ConcatBatches,
    CountSteps,
    LossAndMetrics,
    MergeStats,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    transitions,
)
from raceway.rl import Batch, Fragment, drop_largest, quantile_huber_loss, quantile_midpoints, soft_target
from raceway.settings.field_types import Count, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorReplayConfig, HindsightConfig):
    """Settings of TQC."""

    env: Any = "pendulum"
    """Environment: a short name such as pendulum, any Gymnasium id, or module:Id."""
    num_critics: PositiveInt = 2
    """Number of critics."""
    num_quantiles: PositiveInt = 25
    """Number of quantiles of the return that each critic estimates."""
    dropped_quantiles: Count = 2
    """The largest quantiles of the pooled target critics that are left out, for each critic."""
    initial_temperature: PositiveFloat = 1.0
    """Initial weight α of the entropy."""
    target_entropy: float | None = None
    """Entropy at which the temperature settles (default: minus the number of action dimensions)."""


class QuantileActorCritic(Agent):
    """A squashed Gaussian policy, critics of quantiles and the temperature."""

    critics: nn.Module
    temperature: Temperature


def agent(spaces: Spaces, cfg: Config) -> QuantileActorCritic:
    """Return the untrained agent."""
    temperature = Temperature(cfg.initial_temperature, spaces.action, cfg.target_entropy)
    actor, critics = squashed_actor_and_critics(spaces, cfg, cfg.num_critics, cfg.num_quantiles)
    return QuantileActorCritic(actor, critics=critics, temperature=temperature)


def explorer(spaces: Spaces, cfg: Config) -> Explorer:
    """Return an explorer that samples from the policy, after uniformly random actions until training starts."""
    return UniformWarmUp(spaces.action, math.ceil(cfg.learning_starts / cfg.num_envs), Sample())


def critics_loss(
    agent: QuantileActorCritic, batch: Batch, *, num_dropped: int, random: torch.Generator = injected
) -> LossAndMetrics:
    """Return the quantile Huber loss of every critic to y = r + γ (Z' - α log π(a'|s')), averaged over the batch, [N].

    a' is sampled from the current policy. Z' are the quantiles of all target critics together without the largest.
    """
    with torch.no_grad():
        params = agent.actor(batch["next_obs"], {})[0]
        action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
        next_q = drop_largest(agent.target.critics(batch["next_obs"], action), num_dropped)
        alpha, column = agent.temperature.alpha, (..., None)
        target = soft_target(batch["reward"][column], batch["discount"][column], next_q, alpha, log_prob[column])
    quantiles = agent.critics(batch["obs"], batch["action"])
    losses = quantile_huber_loss(quantiles, target, quantile_midpoints(quantiles.shape[-1]))
    return losses.mean(-1).sum() / quantiles.shape[-1], {"q_values": quantiles.detach().mean()}


def actor_loss(agent: QuantileActorCritic, batch: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    """Return α log π(a|s) - Q(s, a), averaged over the batch, [N], with a sampled from the policy.

    Q is the mean of all quantiles of all critics.
    """
    params = agent.actor(batch["obs"], {})[0]
    action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
    batch["new_log_prob"] = log_prob.detach()  # for the temperature
    q_values = agent.critics(batch["obs"], action).mean((0, 2))
    loss = (agent.temperature.alpha * log_prob - q_values).mean()
    return loss, {"entropy": -log_prob.detach().mean()}


def temperature_loss(agent: QuantileActorCritic, batch: Batch) -> LossAndMetrics:
    """Return -log α (log π(a|s) + target entropy), averaged over the batch, [N], for the actions of `actor_loss`."""
    log_alpha, target_entropy = agent.temperature.log_alpha, agent.temperature.target_entropy
    return -(log_alpha * (batch["new_log_prob"] + target_entropy)).mean(), {"ent_coef": log_alpha.detach().exp()}


@algorithm("tqc", Config, agent=agent, explorer=explorer, actions=("box",))
def tqc(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    targets = Target("critics", tau=cfg.tau, every=cfg.target_every)
    train = TrainOneStep(
        ctx.learner,
        critics=partial(critics_loss, num_dropped=cfg.dropped_quantiles),
        actor=actor_loss,
        temperature=temperature_loss,
        targets=targets,
    )
    store = (
        rollouts.for_each(transitions(cfg.gamma, hindsight=cfg.hindsight))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(StoreToReplay(shards))
        .for_each(CountSteps(ctx.learner))
    )
    replay = (
        ctx.samples(shards, synchronous=True)
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights(every=cfg.samples_per_round))
    )
    return union(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
