"""SAC: soft actor-critic, off-policy control that maximises return and entropy.

Papers: Haarnoja et al. 2018, https://arxiv.org/abs/1801.01290 and https://arxiv.org/abs/1812.05905

    store:    rollouts -> transitions                       on every worker
                 -> replay
    replay:   sampled batches
                 -> critics, actor, temperature             on the learner, one Adam step each
                 -> target critics, by Polyak averaging
                 -> weights of the actor                    to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the papers: actions are uniformly random until training starts, as in the authors' code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from raceway.agents import Agent, Explorer, Sample, Spaces, UniformWarmUp
from raceway.agents.builders import squashed_actor_and_critics
from raceway.agents.temperature import Temperature
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorReplayConfig
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
    Transitions,
)
from raceway.rl import Batch, Fragment, soft_target
from raceway.settings.field_types import PositiveFloat


@dataclass(frozen=True, kw_only=True)
class Config(ActorReplayConfig):
    """Settings of SAC."""

    env: Any = "pendulum"
    """Environment: a short name such as pendulum, any Gymnasium id, or module:Id."""
    initial_temperature: PositiveFloat = 1.0
    """Initial weight α of the entropy."""
    target_entropy: float | None = None
    """Entropy at which the temperature settles (default: minus the number of action dimensions)."""


class SoftActorCritic(Agent):
    """A squashed Gaussian policy, two critics and the temperature."""

    critics: nn.Module
    temperature: Temperature


def agent(spaces: Spaces, cfg: Config) -> SoftActorCritic:
    """Return the untrained agent."""
    temperature = Temperature(cfg.initial_temperature, spaces.action, cfg.target_entropy)
    actor, critics = squashed_actor_and_critics(spaces, cfg)
    return SoftActorCritic(actor, critics=critics, temperature=temperature)


def explorer(spaces: Spaces, cfg: Config) -> Explorer:
    """Return an explorer that samples from the policy, after uniformly random actions until training starts."""
    return UniformWarmUp(spaces.action, math.ceil(cfg.learning_starts / cfg.num_envs), Sample())


def critics_loss(agent: SoftActorCritic, batch: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    """Return Σᵢ (Qᵢ(s, a) - y)² / 2 with y = r + γ (min Q'(s', a') - α log π(a'|s')), averaged over the batch, [N].

    a' is sampled from the current policy, and Q' are the target critics.
    """
    with torch.no_grad():
        params = agent.actor(batch["next_obs"], {})[0]
        action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
        next_q = agent.target.critics(batch["next_obs"], action).amin(0)
        target = soft_target(batch["reward"], batch["discount"], next_q, agent.temperature.alpha, log_prob)
    q_values = agent.critics(batch["obs"], batch["action"])
    return 0.5 * (q_values - target).square().mean(-1).sum(), {"q_values": q_values.detach().mean()}


def actor_loss(agent: SoftActorCritic, batch: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    """Return α log π(a|s) - min Q(s, a), averaged over the batch, [N], with a sampled from the policy."""
    params = agent.actor(batch["obs"], {})[0]
    action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
    batch["new_log_prob"] = log_prob.detach()  # for the temperature
    q_values = agent.critics(batch["obs"], action).amin(0)
    loss = (agent.temperature.alpha * log_prob - q_values).mean()
    return loss, {"entropy": -log_prob.detach().mean()}


def temperature_loss(agent: SoftActorCritic, batch: Batch) -> LossAndMetrics:
    """Return -log α (log π(a|s) + target entropy), averaged over the batch, [N], for the actions of `actor_loss`."""
    log_alpha, target_entropy = agent.temperature.log_alpha, agent.temperature.target_entropy
    return -(log_alpha * (batch["new_log_prob"] + target_entropy)).mean(), {"ent_coef": log_alpha.detach().exp()}


@algorithm("sac", Config, agent=agent, explorer=explorer, actions=("box",))
def sac(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    targets = Target("critics", tau=cfg.tau, every=cfg.target_every)
    train = TrainOneStep(
        ctx.learner, critics=critics_loss, actor=actor_loss, temperature=temperature_loss, targets=targets
    )
    store = (
        rollouts.for_each(Transitions(cfg.gamma))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(StoreToReplay(shards))
        .for_each(CountSteps(ctx.learner))
    )
    replay = (
        ctx.samples(shards, synchronous=True)
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights(every=cfg.updates_per_round))
    )
    return union(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
