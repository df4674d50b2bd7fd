"""CrossQ: SAC without target networks, and with batch normalisation in policy and critics.

Paper: Bhatt et al. 2024, https://openreview.net/forum?id=PczQtTsTIX (https://arxiv.org/abs/1902.05605)

    store:    rollouts -> transitions                       on every worker
                 -> replay
    replay:   sampled batches
                 -> critics; every third time also the
                    actor and the temperature               on the learner, one Adam step each
                 -> weights and statistics of the actor     to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the paper: critics of 1024-1024 instead of 2048-2048, as in sb3-contrib, and actions are uniformly random
for 100 instead of 5000 environment steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from raceway.agents import Agent, Explorer, Sample, Spaces, UniformWarmUp
from raceway.agents.batch_renorm import NormalisedCritics, params_of_batch
from raceway.agents.builders import normalised_actor_and_critics
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
    LossOutput,
    MergeStats,
    Objective,
    StoreToReplay,
    TrainOneStep,
    TrainStats,
    Transitions,
)
from raceway.rl import Batch, Fragment, soft_target
from raceway.settings.field_types import PositiveFloat, PositiveInt, Widths

ADAM = {"betas": (0.5, 0.999)}


@dataclass(frozen=True, kw_only=True)
class Config(ActorReplayConfig):
    """Settings of CrossQ."""

    env: Any = "pendulum"
    """Environment: a short name such as pendulum, any Gymnasium id, or module:Id."""
    lr: PositiveFloat = 1e-3
    """Learning rate."""
    hidden: Widths | None = (256, 256)
    """Widths of the hidden layers of the policy."""
    critic_hidden: Widths | None = (1024, 1024)
    """Widths of the hidden layers of the critics."""
    actor_every: PositiveInt = 3
    """Update the actor and the temperature every N gradient steps."""
    initial_temperature: PositiveFloat = 1.0
    """Initial weight α of the entropy."""
    target_entropy: float | None = None
    """Entropy at which the temperature settles (default: minus the number of action dimensions)."""


class NormalisedActorCritic(Agent):
    """A squashed Gaussian policy and two critics, all with batch normalisation, and the temperature."""

    critics: NormalisedCritics
    temperature: Temperature


def agent(spaces: Spaces, cfg: Config) -> NormalisedActorCritic:
    """Return the untrained agent."""
    temperature = Temperature(cfg.initial_temperature, spaces.action, cfg.target_entropy)
    actor, critics = normalised_actor_and_critics(spaces, cfg)
    return NormalisedActorCritic(actor, critics=critics, temperature=temperature)


def explorer(spaces: Spaces, cfg: Config) -> Explorer:
    """Return an explorer that samples from the policy, after uniformly random actions until training starts."""
    return UniformWarmUp(spaces.action, math.ceil(cfg.learning_starts / cfg.num_envs), Sample())


def critics_loss(agent: NormalisedActorCritic, batch: Batch, *, random: torch.Generator = injected) -> LossOutput:
    """Return Σᵢ (Qᵢ(s, a) - y)² / 2 with y = r + γ (min Q(s', a') - α log π(a'|s')), averaged over the batch, [N].

    a' is sampled from the current policy, with its running statistics. Q(s, a) and Q(s', a') are computed in one pass,
    with the statistics of both; y is a constant.
    """
    with torch.no_grad():
        params = agent.actor(batch["next_obs"], {})[0]
        next_action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
    pairs = batch["obs"], batch["action"], batch["next_obs"], next_action
    q_values, next_q_values, buffers = agent.critics.run_jointly(*pairs)
    with torch.no_grad():
        next_q = next_q_values.amin(0)
        target = soft_target(batch["reward"], batch["discount"], next_q, agent.temperature.alpha, log_prob)
    loss = 0.5 * (q_values - target).square().mean(-1).sum()
    return LossOutput(loss, {"q_values": q_values.detach().mean()}, buffers=buffers)


def actor_loss(agent: NormalisedActorCritic, batch: Batch, *, random: torch.Generator = injected) -> LossOutput:
    """Return α log π(a|s) - min Q(s, a), averaged over the batch, [N], with a sampled from the policy.

    The policy has the statistics of the batch, the critics their running ones.
    """
    params, buffers = params_of_batch(agent.actor, batch["obs"])
    action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
    batch["new_log_prob"] = log_prob.detach()  # for the temperature
    q_values = agent.critics(batch["obs"], action).amin(0)
    loss = (agent.temperature.alpha * log_prob - q_values).mean()
    return LossOutput(loss, {"entropy": -log_prob.detach().mean()}, buffers=buffers)


def temperature_loss(agent: NormalisedActorCritic, batch: Batch) -> LossAndMetrics:
    """Return -log α (log π(a|s) + target entropy), averaged over the batch, [N], for the actions of `actor_loss`."""
    log_alpha, target_entropy = agent.temperature.log_alpha, agent.temperature.target_entropy
    return -(log_alpha * (batch["new_log_prob"] + target_entropy)).mean(), {"ent_coef": log_alpha.detach().exp()}


@algorithm("crossq", Config, agent=agent, explorer=explorer, actions=("box",))
def crossq(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    train = TrainOneStep(
        ctx.learner,
        critics=Objective(loss=critics_loss, options=ADAM),
        actor=Objective(loss=actor_loss, every=cfg.actor_every, options=ADAM),
        temperature=Objective(loss=temperature_loss, every=cfg.actor_every),
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
