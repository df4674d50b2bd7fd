"""IQN: the quantiles of the return at any fractions, by a network that gets the fraction as an input.

Paper: Dabney et al. 2018, https://arxiv.org/abs/1806.06923

    store:    rollouts -> transitions        on every worker
                 -> replay
    replay:   sampled batches
                 -> one Adam step            on the learner
                 -> target network
                 -> weights                  to all workers
    in turn, with a fixed number of environment steps per gradient step

Every loss samples fractions τ for each transition: those of the estimated quantiles, of the target's, and of the mean
by which the next action is chosen.

Differs from the paper: rollouts and evaluation act by the mean over equally spaced fractions instead of sampled ones;
no hidden layer after the product with the embedding of τ; parallel environments, and optionally n-step returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from raceway.agents import EpsilonGreedy, Spaces
from raceway.agents.q_agents import ImplicitQuantileAgent, feature_layers, headed_policy, num_actions
from raceway.agents.q_heads import ImplicitQuantiles, of_action
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.flow import Iter, ParIter, union
from raceway.injection import injected
from raceway.ops import (
    ConcatBatches,
    CountSteps,
    Explore,
    MergeStats,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    Transitions,
)
from raceway.rl import Batch, Fragment, LinearSchedule, quantile_huber_loss
from raceway.settings.field_types import Fraction, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of IQN."""

    num_envs: PositiveInt = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 1
    """Steps per environment in one rollout fragment."""
    num_quantiles: PositiveInt = 8
    """Fractions τ that are sampled for each transition in the loss."""
    num_target_quantiles: PositiveInt = 8
    """Fractions τ' that are sampled for each transition in the target."""
    num_action_quantiles: PositiveInt = 32
    """Fractions whose mean of quantiles is the Q-value: sampled in the target, equally spaced for acting."""
    num_cosines: PositiveInt = 64
    """Cosines in the embedding of a fraction."""
    n_step: PositiveInt = 1
    """Steps n of the n-step return."""
    epsilon: Fraction = 0.05
    """Final ε of the ε-greedy policy."""
    epsilon_steps: PositiveInt = 100_000
    """Environment steps over which ε decays linearly from 1."""


def agent(spaces: Spaces, cfg: Config) -> ImplicitQuantileAgent:
    """Return an agent whose network embeds fractions by cosines."""
    trunk, size = feature_layers(spaces, cfg, cfg.hidden or (), own_width=cfg.hidden[-1] if cfg.hidden else None)
    head = ImplicitQuantiles(size, num_actions(spaces), cfg.num_cosines, cfg.num_action_quantiles)
    return ImplicitQuantileAgent(headed_policy(spaces, cfg, trunk, head))


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer, whose ε decays from 1."""
    return EpsilonGreedy(1.0)


def loss(
    agent: ImplicitQuantileAgent, batch: Batch, *, nums: tuple[int, int, int], random: torch.Generator = injected
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the quantile Huber loss of Z_τ(s, a) to r + γ Z'_τ'(s', a'), averaged over the batch, [N].

    Z' is the target network, and a' the action with the greatest mean of its quantiles. All fractions τ are sampled,
    `nums` of them: of the estimate, of the target, and for a'.
    """
    obs, next_obs, num_rows = batch["obs"], batch["next_obs"], len(batch["action"])
    fractions, next_fractions, action_fractions = (
        torch.rand(num_rows, num, generator=random).to(batch["reward"].device) for num in nums
    )
    with torch.no_grad():
        next_features = agent.target.features(next_obs)
        next_action = agent.target.expected(next_features, action_fractions, next_obs).argmax(-1)
        next_quantiles = of_action(agent.target.head.quantiles(next_features, next_fractions), next_action)
        target = batch["reward"][:, None] + batch["discount"][:, None] * next_quantiles
    quantiles = of_action(agent.head.quantiles(agent.features(obs), fractions), agent.action_index(batch))
    losses = quantile_huber_loss(quantiles, target, fractions)
    return losses.mean(), {"q_values": quantiles.detach().mean()}


@algorithm("iqn", Config, agent=agent, explorer=explorer, actions=("discrete",))
def iqn(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    store = (
        rollouts.for_each(Transitions(cfg.gamma, cfg.n_step))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(Explore(ctx.exploration, epsilon=LinearSchedule(1.0, cfg.epsilon, cfg.epsilon_steps)))
        .for_each(StoreToReplay(shards))
        .for_each(CountSteps(ctx.learner))
    )
    nums = cfg.num_quantiles, cfg.num_target_quantiles, cfg.num_action_quantiles
    train = TrainOneStep(ctx.learner, partial(loss, nums=nums), targets=Target(every=cfg.target_every))
    replay = (
        ctx.samples(shards, synchronous=True)
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights(every=cfg.samples_per_round))
    )
    return union(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
