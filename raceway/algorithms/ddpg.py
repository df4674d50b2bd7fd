"""DDPG: deep deterministic policy gradients, off-policy control with a deterministic policy.

Paper: Lillicrap et al. 2015, https://arxiv.org/abs/1509.02971

    store:    rollouts with noisy actions -> transitions    on every worker
                 -> replay
    replay:   sampled batches
                 -> critic, actor                           on the learner, one Adam step each
                 -> targets of both, by Polyak averaging
                 -> weights of the actor                    to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the paper: normal noise instead of an Ornstein-Uhlenbeck process, no weight decay, one learning rate for
both networks, actions as an input of the critic's first layer, and batches of 256, as in TD3's comparison with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from raceway.agents import Agent, Explorer, GaussianNoise, Spaces, UniformWarmUp
from raceway.agents.builders import deterministic_actor_and_critics
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorReplayConfig, HindsightConfig
from raceway.flow import Iter, ParIter, union
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
from raceway.rl import Batch, Fragment
from raceway.settings.field_types import NonNegativeFloat


@dataclass(frozen=True, kw_only=True)
class Config(ActorReplayConfig, HindsightConfig):
    """Settings of DDPG."""

    env: Any = "pendulum"
    """Environment: a short name such as pendulum, any Gymnasium id, or module:Id."""
    noise: NonNegativeFloat = 0.1
    """Standard deviation of the exploration noise, as a share of half the range of actions."""


class DeterministicActorCritic(Agent):
    """A deterministic policy and a critic of its actions."""

    critic: nn.Module


def agent(spaces: Spaces, cfg: Config) -> DeterministicActorCritic:
    """Return the untrained agent."""
    actor, critic = deterministic_actor_and_critics(spaces, cfg, num=1)
    return DeterministicActorCritic(actor, critic=critic)


def explorer(spaces: Spaces, cfg: Config) -> Explorer:
    """Return an explorer that adds noise, after uniformly random actions until training starts."""
    return UniformWarmUp(spaces.action, math.ceil(cfg.learning_starts / cfg.num_envs), GaussianNoise(cfg.noise))


def critic_loss(agent: DeterministicActorCritic, batch: Batch) -> LossAndMetrics:
    """Return (Q(s, a) - y)² with y = r + γ Q'(s', π'(s')), averaged over the batch, [N].

    Q' and π' are the target networks.
    """
    with torch.no_grad():
        target = agent.target
        params = target.actor(batch["next_obs"], {})[0]
        next_q = target.critic(batch["next_obs"], target.actor.distribution.actions(params))[0]
        td_target = batch["reward"] + batch["discount"] * next_q
    q_values = agent.critic(batch["obs"], batch["action"])[0]
    return (q_values - td_target).square().mean(), {"q_values": q_values.detach().mean()}


def actor_loss(agent: DeterministicActorCritic, batch: Batch) -> LossAndMetrics:
    """Return -Q(s, π(s)), averaged over the batch, [N]."""
    params = agent.actor(batch["obs"], {})[0]
    return -agent.critic(batch["obs"], agent.actor.distribution.actions(params)).mean(), {}


@algorithm("ddpg", Config, agent=agent, explorer=explorer, actions=("box",))
def ddpg(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    targets = Target(("actor", "critic"), tau=cfg.tau, every=cfg.target_every)
    train = TrainOneStep(ctx.learner, critic=critic_loss, actor=actor_loss, targets=targets)
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
