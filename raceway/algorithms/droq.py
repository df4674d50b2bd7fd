"""DroQ: SAC with many gradient steps per environment step, and critics with dropout and layer normalisation.

Paper: Hiraoka et al. 2022, https://arxiv.org/abs/2110.02034

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
from typing import Annotated, Any

import torch

from raceway.agents import Explorer, Sample, Spaces, UniformWarmUp
from raceway.agents.builders import squashed_actor_and_critics
from raceway.agents.soft_actor_critic import SoftActorCritic
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
    Objective,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    Transitions,
)
from raceway.rl import Batch, Fragment, soft_target
from raceway.settings.field_types import Accepts, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorReplayConfig):
    """Settings of DroQ."""

    env: Any = "pendulum"
    """Environment: a short name such as pendulum, any Gymnasium id, or module:Id."""
    steps_per_update: PositiveFloat = 0.05
    """Environment steps per gradient step."""
    actor_every: PositiveInt = 20
    """Update the actor and the temperature every N gradient steps."""
    dropout: Annotated[float, Accepts("a number from 0 to below 1", lambda value: 0 <= value < 1)] = 0.01
    """Probability with which a hidden unit of a critic is dropped."""
    initial_temperature: PositiveFloat = 1.0
    """Initial weight α of the entropy."""
    target_entropy: float | None = None
    """Entropy at which the temperature settles (default: minus the number of action dimensions)."""


def agent(spaces: Spaces, cfg: Config) -> SoftActorCritic:
    """Return the untrained agent."""
    temperature = Temperature(cfg.initial_temperature, spaces.action, cfg.target_entropy)
    actor, critics = squashed_actor_and_critics(spaces, cfg, layer_norm=True, dropout=cfg.dropout)
    return SoftActorCritic(actor, critics=critics, temperature=temperature)


def explorer(spaces: Spaces, cfg: Config) -> Explorer:
    """Return an explorer that samples from the policy, after uniformly random actions until training starts."""
    return UniformWarmUp(spaces.action, math.ceil(cfg.learning_starts / cfg.num_envs), Sample())


def critics_loss(agent: SoftActorCritic, batch: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    """Return Σᵢ (Qᵢ(s, a) - y)² / 2 with y = r + γ (min Q'(s', a') - α log π(a'|s')), averaged over the batch, [N].

    a' is sampled from the current policy, and Q' are the target critics, with dropout like Q.
    """
    with torch.no_grad():
        params = agent.actor(batch["next_obs"], {})[0]
        action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
        next_q = agent.target.critics(batch["next_obs"], action, random=random).amin(0)
        target = soft_target(batch["reward"], batch["discount"], next_q, agent.temperature.alpha, log_prob)
    q_values = agent.critics(batch["obs"], batch["action"], random=random)
    return 0.5 * (q_values - target).square().mean(-1).sum(), {"q_values": q_values.detach().mean()}


def actor_loss(agent: SoftActorCritic, batch: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    """Return α log π(a|s) - the mean of all Qᵢ(s, a), averaged over the batch, [N], with a sampled from the policy."""
    params = agent.actor(batch["obs"], {})[0]
    action, log_prob = agent.actor.distribution.sample_with_log_prob(params, random)
    batch["new_log_prob"] = log_prob.detach()  # for the temperature
    q_values = agent.critics(batch["obs"], action, random=random).mean(0)
    loss = (agent.temperature.alpha * log_prob - q_values).mean()
    return loss, {"entropy": -log_prob.detach().mean()}


def temperature_loss(agent: SoftActorCritic, batch: Batch) -> LossAndMetrics:
    """Return -log α (log π(a|s) + target entropy), averaged over the batch, [N], for the actions of `actor_loss`."""
    log_alpha, target_entropy = agent.temperature.log_alpha, agent.temperature.target_entropy
    return -(log_alpha * (batch["new_log_prob"] + target_entropy)).mean(), {"ent_coef": log_alpha.detach().exp()}


@algorithm("droq", Config, agent=agent, explorer=explorer, actions=("box",))
def droq(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    train = TrainOneStep(
        ctx.learner,
        critics=critics_loss,
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
