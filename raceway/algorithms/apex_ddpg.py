"""Ape-X DPG: DDPG with distributed prioritised replay.

Paper: Horgan et al. 2018, https://arxiv.org/abs/1803.00933

    store:    rollouts with noisy actions -> n-step transitions    on every worker
                 ~> prioritised replay                             on its shards
                 -> weights of the actor                           to the worker that sent them
    replay:   batches sampled from the shards
                 ~> critic, actor                                  on the learner, one Adam step each
                 -> targets of both, by Polyak averaging
                 -> new priorities                                 to the shard
    both at the same time, with a rate limit between them

Differs from the paper: Polyak averaging instead of copies of the networks, 3-step returns instead of 5-step ones, and
noise of another size in every environment; new transitions get the maximum priority so far instead of one computed by
the worker.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from raceway.agents import Agent, Explorer, GaussianNoise, Spaces, UniformWarmUp
from raceway.agents.builders import deterministic_actor_and_critics
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorReplayConfig
from raceway.flow import Iter, ParIter, union_async
from raceway.ops import (
    CountSteps,
    LossAndMetrics,
    LossOutput,
    MergeStats,
    ReplaySettings,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    Transitions,
    UpdatePriorities,
)
from raceway.rl import Batch, Fragment
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorReplayConfig):
    """Settings of Ape-X DPG."""

    prioritised: ClassVar[bool] = True
    env: Any = "pendulum"
    """Environment: a short name such as pendulum, any Gymnasium id, or module:Id."""
    num_envs: PositiveInt = 32
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 50
    """Steps per environment in one rollout fragment."""
    steps_per_update: PositiveFloat = 4.0
    """Environment steps per gradient step."""
    n_step: PositiveInt = 3
    """Steps n of the n-step return."""
    replay_shards: PositiveInt = 2
    """Number of actors that the replay buffer is sharded over."""
    alpha: Fraction = 0.6
    """Prioritisation exponent α."""
    beta: Fraction = 0.4
    """Importance-sampling exponent β."""
    noise: Fraction = 0.4
    """Base σ of the exploration noise: its standard deviation, as a share of half the range of actions, is σⁱ in the
    environments, with i from 1 to 8."""
    weights_every: PositiveInt = 1
    """Fragments that a worker collects before it gets new weights."""

    @property
    def replay_settings(self) -> ReplaySettings:
        """Settings of the prioritised replay buffer."""
        settings = {"num_shards": self.replay_shards, "alpha": self.alpha, "beta": self.beta}
        min_size = max(1, self.learning_starts // (2 * self.replay_shards))
        return dataclasses.replace(super().replay_settings, **settings, min_size=min_size)  # type: ignore[arg-type]


class DeterministicActorCritic(Agent):
    """A deterministic policy and a critic of its actions."""

    critic: nn.Module


def agent(spaces: Spaces, cfg: Config) -> DeterministicActorCritic:
    """Return the untrained agent."""
    actor, critic = deterministic_actor_and_critics(spaces, cfg, num=1)
    return DeterministicActorCritic(actor, critic=critic)


def explorer(spaces: Spaces, cfg: Config) -> Explorer:
    """Return an explorer that adds noise, different in each environment, after uniformly random actions."""
    noise = GaussianNoise((cfg.noise ** torch.linspace(1, 8, cfg.num_envs)).numpy())
    return UniformWarmUp(spaces.action, math.ceil(cfg.learning_starts / cfg.num_envs), noise)


def critic_loss(agent: DeterministicActorCritic, batch: Batch) -> LossOutput:
    """Return w (Q(s, a) - y)² with y = Σ γᵏ rₖ + γⁿ Q'(s', π'(s')), averaged over the batch, [N].

    Q' and π' are the target networks, and w is the importance-sampling weight of the transition.
    """
    with torch.no_grad():
        target = agent.target
        params = target.actor(batch["next_obs"], {})[0]
        next_q = target.critic(batch["next_obs"], target.actor.distribution.actions(params))[0]
        td_target = batch["reward"] + batch["discount"] * next_q
    q_values = agent.critic(batch["obs"], batch["action"])[0]
    errors = q_values - td_target
    metrics = {"q_values": q_values.detach().mean()}
    return LossOutput((batch["weight"] * errors.square()).mean(), metrics, priorities=errors.detach().abs())


def actor_loss(agent: DeterministicActorCritic, batch: Batch) -> LossAndMetrics:
    """Return -Q(s, π(s)), averaged over the batch, [N]."""
    params = agent.actor(batch["obs"], {})[0]
    return -agent.critic(batch["obs"], agent.actor.distribution.actions(params)).mean(), {}


@algorithm("apex_ddpg", Config, agent=agent, explorer=explorer, actions=("box",))
def apex_ddpg(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    targets = Target(("actor", "critic"), tau=cfg.tau, every=cfg.target_every)
    train = TrainOneStep(ctx.learner, critic=critic_loss, actor=actor_loss, targets=targets)
    store = (
        rollouts.for_each(Transitions(cfg.gamma, cfg.n_step))
        .gather_async()
        .for_each(StoreToReplay(shards))
        .for_each(ctx.weights(to="senders", every=cfg.weights_every))
        .for_each(CountSteps(ctx.learner))
    )
    replay = (
        ctx.samples(shards).for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue)).for_each(UpdatePriorities())
    )
    return union_async(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
