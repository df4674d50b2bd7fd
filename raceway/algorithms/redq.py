"""REDQ: SAC with many gradient steps per environment step, and targets from random subsets of many critics.

Paper: Chen et al. 2021, https://arxiv.org/abs/2101.05982

    store:    rollouts -> transitions                       on every worker
                 -> replay
    replay:   sampled batches
                 -> critics; every 20th time also the
                    actor and the temperature               on the learner, one Adam step each
                 -> target critics, by Polyak averaging
                 -> weights of the actor                    to all workers
    in turn, with 20 gradient steps per environment step

Differs from the paper: actions are uniformly random for 100 instead of 5000 environment steps; the target entropy is
minus the number of action dimensions for every environment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from raceway.agents import Explorer, Sample, Spaces, UniformWarmUp
from raceway.agents.builders import squashed_actor_and_critics
from raceway.agents.critics import CriticList
from raceway.agents.soft_actor_critic import SoftActorCritic
from raceway.agents.temperature import Temperature
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorReplayConfig
from raceway.errors import ConfigError
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
    Transitions,
)
from raceway.rl import Batch, Fragment, soft_target
from raceway.settings.field_types import PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorReplayConfig):
    """Settings of REDQ."""

    env: Any = "pendulum"
    """Environment: a short name such as pendulum, any Gymnasium id, or module:Id."""
    steps_per_update: PositiveFloat = 0.05
    """Environment steps per gradient step."""
    actor_every: PositiveInt = 20
    """Update the actor and the temperature every N gradient steps."""
    num_critics: PositiveInt = 10
    """Number of critics."""
    target_critics: PositiveInt = 2
    """Number of critics whose minimum is the target, sampled for every gradient step."""
    initial_temperature: PositiveFloat = 1.0
    """Initial weight α of the entropy."""
    target_entropy: float | None = None
    """Entropy at which the temperature settles (default: minus the number of action dimensions)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_critics > self.num_critics:
            raise ConfigError(
                f"target_critics {self.target_critics} are sampled from num_critics {self.num_critics}. Sample fewer."
            )


def agent(spaces: Spaces, cfg: Config) -> SoftActorCritic:
    """Return the untrained agent."""
    temperature = Temperature(cfg.initial_temperature, spaces.action, cfg.target_entropy)
    actor, critics = squashed_actor_and_critics(spaces, cfg, cfg.num_critics)
    if isinstance(critics, CriticList):
        if cfg.target_critics > len(critics):
            raise ConfigError(
                f"target_critics {cfg.target_critics} are sampled from the {len(critics)} critics of your own. Sample "
                "fewer, or return more critics."
            )
        actor.unused_settings = {**actor.unused_settings, "num_critics": "the critics are your own"}
    return SoftActorCritic(actor, critics=critics, temperature=temperature)


def explorer(spaces: Spaces, cfg: Config) -> Explorer:
    """Return an explorer that samples from the policy, after uniformly random actions until training starts."""
    return UniformWarmUp(spaces.action, math.ceil(cfg.learning_starts / cfg.num_envs), Sample())


def critics_loss(
    agent: SoftActorCritic, batch: Batch, *, num_targets: int, random: torch.Generator = injected
) -> LossAndMetrics:
    """Return Σᵢ (Qᵢ(s, a) - y)² / 2 with y = r + γ (min Q'(s', a') - α log π(a'|s')), averaged over the batch, [N].

    a' is sampled from the current policy, and Q' are `num_targets` of the target critics, chosen at random.
    """
    with torch.no_grad():
        params = agent.actor(batch["next_obs"], {})[0]
        action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
        members = torch.randperm(len(agent.critics), generator=random)[:num_targets].to(params.device)
        next_q = agent.target.critics(batch["next_obs"], action, members=members).amin(0)
        target = soft_target(batch["reward"], batch["discount"], next_q, agent.temperature.alpha, log_prob)
    q_values = agent.critics(batch["obs"], batch["action"])
    return 0.5 * (q_values - target).square().mean(-1).sum(), {"q_values": q_values.detach().mean()}


def actor_loss(agent: SoftActorCritic, batch: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    """Return α log π(a|s) - the mean of all Qᵢ(s, a), averaged over the batch, [N], with a sampled from the policy."""
    params = agent.actor(batch["obs"], {})[0]
    action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
    batch["new_log_prob"] = log_prob.detach()  # for the temperature
    q_values = agent.critics(batch["obs"], action).mean(0)
    loss = (agent.temperature.alpha * log_prob - q_values).mean()
    return loss, {"entropy": -log_prob.detach().mean()}


def temperature_loss(agent: SoftActorCritic, batch: Batch) -> LossAndMetrics:
    """Return -log α (log π(a|s) + target entropy), averaged over the batch, [N], for the actions of `actor_loss`."""
    log_alpha, target_entropy = agent.temperature.log_alpha, agent.temperature.target_entropy
    return -(log_alpha * (batch["new_log_prob"] + target_entropy)).mean(), {"ent_coef": log_alpha.detach().exp()}


@algorithm("redq", Config, agent=agent, explorer=explorer, actions=("box",))
def redq(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    train = TrainOneStep(
        ctx.learner,
        critics=partial(critics_loss, num_targets=cfg.target_critics),
        actor=Objective(loss=actor_loss, every=cfg.actor_every),
        temperature=Objective(loss=temperature_loss, every=cfg.actor_every),
        targets=Target("critics", tau=cfg.tau, every=cfg.target_every),
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
        .for_each(ctx.weights(every=cfg.samples_per_round))
    )
    return union(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
