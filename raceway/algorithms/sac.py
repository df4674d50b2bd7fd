"""SAC: soft actor-critic, off-policy control that maximises return and entropy.

Papers: Haarnoja et al. 2018, https://arxiv.org/abs/1801.01290 and https://arxiv.org/abs/1812.05905; for discrete
actions Christodoulou 2019, https://arxiv.org/abs/1910.07207

    store:    rollouts -> transitions                       on every worker
                 -> replay
    replay:   sampled batches
                 -> critics, actor, temperature             on the learner, one Adam step each
                 -> target critics, by Polyak averaging
                 -> weights of the actor                    to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the papers: actions are uniformly random until training starts, as in the authors' code. The target entropy
of discrete actions is a smaller share of log n, as the 0.98 of the paper lets the temperature grow without bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from raceway.agents import Explorer, Sample, Spaces, UniformWarmUp
from raceway.agents.builders import soft_actor_critic
from raceway.agents.soft_actor_critic import DiscreteSoftActorCritic, SoftActorCritic
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorReplayConfig, HindsightConfig
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
    transitions,
)
from raceway.rl import Batch, Fragment, network_obs_space
from raceway.settings.field_types import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorReplayConfig, HindsightConfig):
    """Settings of SAC."""

    env: Any = "pendulum"
    """Environment: a short name such as pendulum, any Gymnasium id, or module:Id."""
    n_step: PositiveInt = 1
    """Steps n of the n-step return. The entropy of the steps in between is not counted."""
    initial_temperature: PositiveFloat = 1.0
    """Initial weight α of the entropy."""
    temperature_lr: NonNegativeFloat | None = None
    """Learning rate of the temperature (default: lr). With 0, the temperature stays the initial one."""
    target_entropy: float | None = None
    """Entropy at which the temperature settles (default: minus the number of action dimensions; 0.3 log n of n discrete
    actions)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature_lr == 0 and self.target_entropy is not None:
            raise ConfigError(
                f"target_entropy {self.target_entropy:g} has no effect: with temperature_lr 0 the temperature stays as "
                "it is. Leave target_entropy out, or set temperature_lr."
            )


SoftAgent = SoftActorCritic | DiscreteSoftActorCritic


def explorer(spaces: Spaces, cfg: Config) -> Explorer:
    """Return an explorer that samples from the policy, after uniformly random actions until training starts.

    With an action mask, the first actions are sampled from the untrained policy, which obeys it.
    """
    _, has_mask = network_obs_space(spaces.observation)
    return UniformWarmUp(spaces.action, 0 if has_mask else math.ceil(cfg.learning_starts / cfg.num_envs), Sample())


def critics_loss(agent: SoftAgent, batch: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    """Return Σᵢ (Qᵢ(s, a) - y)² / 2 with y = r + γ (min Q'(s', a') - α log π(a'|s')), averaged over the batch, [N].

    a' is sampled from the current policy, or y is the mean over all a' if they are discrete; Q' are the target critics.
    """
    with torch.no_grad():
        next_value, _ = agent.soft_value(agent.target.critics, batch["next_obs"], random)
        target = batch["reward"] + batch["discount"] * next_value
    q_values = agent.q_values(batch)
    return 0.5 * (q_values - target).square().mean(-1).sum(), {"q_values": q_values.detach().mean()}


def actor_loss(agent: SoftAgent, batch: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    """Return α log π(a|s) - min Q(s, a), averaged over the batch, [N], with a sampled from the policy, or all a."""
    value, log_prob = agent.soft_value(agent.critics, batch["obs"], random)
    batch["new_log_prob"] = log_prob.detach()  # for the temperature
    return -value.mean(), {"entropy": -log_prob.detach().mean()}


def temperature_loss(agent: SoftAgent, batch: Batch) -> LossAndMetrics:
    """Return -log α (log π(a|s) + target entropy), averaged over the batch, [N], for the actions of `actor_loss`."""
    log_alpha, target_entropy = agent.temperature.log_alpha, agent.temperature.target_entropy
    return -(log_alpha * (batch["new_log_prob"] + target_entropy)).mean(), {"ent_coef": log_alpha.detach().exp()}


@algorithm("sac", Config, agent=soft_actor_critic, explorer=explorer, actions=("box", "discrete"))
def sac(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    targets = Target("critics", tau=cfg.tau, every=cfg.target_every)
    temperature = Objective(loss=temperature_loss, lr=cfg.temperature_lr)
    train = TrainOneStep(ctx.learner, critics=critics_loss, actor=actor_loss, temperature=temperature, targets=targets)
    store = (
        rollouts.for_each(transitions(cfg.gamma, cfg.n_step, hindsight=cfg.hindsight))
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
