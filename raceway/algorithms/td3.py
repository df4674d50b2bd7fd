"""TD3: twin delayed deep deterministic policy gradients, off-policy control with a deterministic policy.

Paper: Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477

    store:    rollouts with noisy actions -> transitions    on every worker
                 -> replay
    replay:   sampled batches
                 -> critics; every second time the actor    on the learner, one Adam step each
                 -> targets of both, by Polyak averaging
                 -> weights of the actor                    to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the paper: one learning rate for all networks, and batches of 256, as in later work of the authors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from raceway.agents import Agent, Explorer, GaussianNoise, Spaces, UniformWarmUp
from raceway.agents.builders import deterministic_actor_and_critics
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
    Objective,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    transitions,
)
from raceway.rl import Batch, Fragment
from raceway.settings.field_types import NonNegativeFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorReplayConfig, HindsightConfig):
    """Settings of TD3."""

    env: Any = "pendulum"
    """Environment: a short name such as pendulum, any Gymnasium id, or module:Id."""
    noise: NonNegativeFloat = 0.1
    """Standard deviation of the exploration noise, as a share of half the range of actions."""
    target_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on the actions in the critics' targets, likewise."""
    target_noise_limit: NonNegativeFloat = 0.5
    """Limit of that noise."""
    target_every: PositiveInt = 2
    """Update the actor and the target networks every N gradient steps."""


class TwinCritics(Agent):
    """A deterministic policy and two critics."""

    critics: nn.Module


def agent(spaces: Spaces, cfg: Config) -> TwinCritics:
    """Return the untrained agent."""
    actor, critics = deterministic_actor_and_critics(spaces, cfg, num=2)
    return TwinCritics(actor, critics=critics)


def explorer(spaces: Spaces, cfg: Config) -> Explorer:
    """Return an explorer that adds noise, after uniformly random actions until training starts."""
    return UniformWarmUp(spaces.action, math.ceil(cfg.learning_starts / cfg.num_envs), GaussianNoise(cfg.noise))


def critics_loss(
    agent: TwinCritics, batch: Batch, *, noise: float, limit: float, random: torch.Generator = injected
) -> LossAndMetrics:
    """Return Σᵢ (Qᵢ(s, a) - y)² with y = r + γ min Q'(s', π'(s') + ε), averaged over the batch, [N].

    ε is normal noise with the deviation `noise`, clipped to ± `limit`; Q' and π' are the target networks.
    """
    with torch.no_grad():
        target = agent.target
        params = target.actor(batch["next_obs"], {})[0]
        noises = (torch.randn(params.shape, generator=random) * noise).clamp(-limit, limit).to(params.device)
        next_q = target.critics(batch["next_obs"], target.actor.distribution.actions(params, noises)).amin(0)
        td_target = batch["reward"] + batch["discount"] * next_q
    q_values = agent.critics(batch["obs"], batch["action"])
    return (q_values - td_target).square().mean(-1).sum(), {"q_values": q_values.detach().mean()}


def actor_loss(agent: TwinCritics, batch: Batch) -> LossAndMetrics:
    """Return -Q₁(s, π(s)), averaged over the batch, [N]."""
    params = agent.actor(batch["obs"], {})[0]
    return -agent.critics(batch["obs"], agent.actor.distribution.actions(params), num=1).mean(), {}


@algorithm("td3", Config, agent=agent, explorer=explorer, actions=("box",))
def td3(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    train = TrainOneStep(
        ctx.learner,
        critics=partial(critics_loss, noise=cfg.target_noise, limit=cfg.target_noise_limit),
        actor=Objective(loss=actor_loss, every=cfg.target_every),
        targets=Target(("actor", "critics"), tau=cfg.tau, every=cfg.target_every),
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
