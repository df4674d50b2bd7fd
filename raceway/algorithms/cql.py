"""CQL: conservative Q-learning from a dataset, with critics that do not overestimate actions that it lacks.

Paper: Kumar et al. 2020, https://arxiv.org/abs/2006.04779

    minibatches of a dataset                       on every reader
       -> critics, actor, temperature              on the learner, one Adam step each
       -> target critics, by Polyak averaging
       -> weights                                  to evaluations

SAC's losses, with a penalty on the critics. Differs from the paper: the weight of the penalty is fixed. As in the
authors' code, actions of the policy at the next state are among those that are penalised. `discrete_cql` is the same
for discrete actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from raceway.agents import Spaces
from raceway.agents.builders import squashed_actor_and_critics
from raceway.agents.distributions import Bounded
from raceway.agents.soft_actor_critic import SoftActorCritic
from raceway.agents.temperature import Temperature
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorDatasetConfig
from raceway.algorithms.sources import DatasetSource
from raceway.flow import Iter, ParIter
from raceway.injection import injected
from raceway.ops import AddDiscounts, LossAndMetrics, Objective, Target, TrainOneStep, TrainStats
from raceway.rl import Batch, conservative_penalty, importance_weighted, soft_target
from raceway.settings.field_types import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorDatasetConfig):
    """Settings of CQL."""

    actor_lr: PositiveFloat = 1e-4
    """Learning rate of the policy."""
    penalty: NonNegativeFloat = 5.0
    """Weight α of the penalty on Q-values of actions other than the dataset's. 0 is SAC."""
    num_actions: PositiveInt = 10
    """Penalised actions per state of each kind: uniformly random, the policy's, and the policy's at the next state."""
    initial_temperature: PositiveFloat = 1.0
    """Initial weight of the entropy."""
    temperature_lr: NonNegativeFloat | None = 1e-4
    """Learning rate of the temperature (none: lr). With 0, the temperature stays the initial one."""
    target_entropy: float | None = None
    """Entropy at which the temperature settles (default: minus the number of action dimensions)."""


def agent(spaces: Spaces, cfg: Config) -> SoftActorCritic:
    """Return the untrained agent."""
    temperature = Temperature(cfg.initial_temperature, spaces.action, cfg.target_entropy)
    actor, critics = squashed_actor_and_critics(spaces, cfg)
    return SoftActorCritic(actor, critics=critics, temperature=temperature)


def sampled_actions(
    agent: SoftActorCritic, params: Tensor, next_params: Tensor, num: int, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return actions, [N, 3 num, ...], and the logarithms of the densities that they were sampled with, [N, 3 num]."""
    distribution = agent.actor.distribution
    assert isinstance(distribution, Bounded)
    uniform = (2 * torch.rand((len(params), num, distribution.num), generator=random) - 1).to(params.device)
    log_density = torch.full_like(uniform[..., 0], distribution.num * math.log(0.5))
    sampled = [(distribution.scaled_tensor(uniform), log_density)]
    for each in (params, next_params):
        sampled.append(distribution.sample_with_log_prob(each[:, None].expand(-1, num, -1), random))
    actions, log_densities = zip(*sampled, strict=True)
    return torch.cat(actions, 1), torch.cat(log_densities, 1)


def critics_loss(
    agent: SoftActorCritic, batch: Batch, *, penalty: float, num_actions: int, random: torch.Generator = injected
) -> LossAndMetrics:
    """Return Σᵢ (Qᵢ(s, a) - y)² / 2 + α (log Σ exp Qᵢ(s, ·) - Qᵢ(s, a)), averaged over the batch, [N].

    y = r + γ (min Q'(s', a') - α log π(a'|s')) is SAC's target. The sum over all actions is estimated from samples.
    """
    with torch.no_grad():
        params, next_params = (agent.actor(batch[name], {})[0] for name in ("obs", "next_obs"))
        action, log_prob = agent.actor.distribution.sample_with_log_prob(next_params, random)
        next_q = agent.target.critics(batch["next_obs"], action).amin(0)
        target = soft_target(batch["reward"], batch["discount"], next_q, agent.temperature.alpha, log_prob)
        actions, log_density = sampled_actions(agent, params, next_params, num_actions, random)
    q_values = agent.q_values(batch)
    gaps = conservative_penalty(importance_weighted(agent.q_values_of(batch["obs"], actions), log_density), q_values)
    loss = 0.5 * (q_values - target).square().mean(-1).sum() + penalty * gaps.mean(-1).sum()
    return loss, {"q_values": q_values.detach().mean(), "conservative_gap": gaps.detach().mean()}


def actor_loss(agent: SoftActorCritic, batch: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    """Return α log π(a|s) - min Q(s, a), averaged over the batch, [N], with a sampled from the policy."""
    value, log_prob = agent.soft_value(agent.critics, batch["obs"], random)
    batch["new_log_prob"] = log_prob.detach()  # for the temperature
    return -value.mean(), {"entropy": -log_prob.detach().mean()}


def temperature_loss(agent: SoftActorCritic, batch: Batch) -> LossAndMetrics:
    """Return -log α (log π(a|s) + target entropy), averaged over the batch, [N], for the actions of `actor_loss`."""
    log_alpha, target_entropy = agent.temperature.log_alpha, agent.temperature.target_entropy
    return -(log_alpha * (batch["new_log_prob"] + target_entropy)).mean(), {"ent_coef": log_alpha.detach().exp()}


@algorithm("cql", Config, agent=agent, actions=("box",), source=DatasetSource)
def cql(minibatches: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    train = TrainOneStep(
        ctx.learner,
        critics=partial(critics_loss, penalty=cfg.penalty, num_actions=cfg.num_actions),
        actor=Objective(loss=actor_loss, lr=cfg.actor_lr),
        temperature=Objective(loss=temperature_loss, lr=cfg.temperature_lr),
        targets=Target("critics", tau=cfg.tau, every=cfg.target_every),
    )
    return (
        minibatches.for_each(AddDiscounts(cfg.gamma))
        .gather_sync()
        .flatten()
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights())
    )
