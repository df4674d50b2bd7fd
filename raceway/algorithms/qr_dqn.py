"""QR-DQN: the distribution of the return by its quantiles, learnt by quantile regression.

Paper: Dabney et al. 2018, https://arxiv.org/abs/1710.10044

    store:    rollouts -> transitions        on every worker
                 -> replay
    replay:   sampled batches
                 -> one Adam step            on the learner
                 -> target network
                 -> weights                  to all workers
    in turn, with a fixed number of environment steps per gradient step

The network has K quantiles for every action, and their mean is its Q-value.

Differs from the paper: parallel environments, and optionally n-step returns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raceway.agents import EpsilonGreedy, Spaces
from raceway.agents.q_agents import DistributionalAgent, distributional_policy, num_actions
from raceway.agents.q_heads import Quantiles, of_action
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.flow import Iter, ParIter, union
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
from raceway.rl import Batch, Fragment, LinearSchedule, quantile_huber_loss, quantile_midpoints
from raceway.settings.field_types import Fraction, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of QR-DQN."""

    num_envs: PositiveInt = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 1
    """Steps per environment in one rollout fragment."""
    num_quantiles: PositiveInt = 200
    """Number of quantiles of the return."""
    n_step: PositiveInt = 1
    """Steps n of the n-step return."""
    epsilon: Fraction = 0.05
    """Final ε of the ε-greedy policy."""
    epsilon_steps: PositiveInt = 100_000
    """Environment steps over which ε decays linearly from 1."""


def agent(spaces: Spaces, cfg: Config) -> DistributionalAgent:
    """Return an agent whose network has quantiles of the return for every action."""
    return DistributionalAgent(distributional_policy(spaces, cfg, Quantiles(num_actions(spaces), cfg.num_quantiles)))


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer, whose ε decays from 1."""
    return EpsilonGreedy(1.0)


def loss(agent: DistributionalAgent, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the quantile Huber loss of θ(s, a) to r + γ θ'(s', a'), averaged over the batch, [N].

    θ' are the quantiles of the target network, and a' is the action with the greatest mean of them.
    """
    with torch.no_grad():
        next_quantiles = agent.target.distributions(batch["next_obs"])
        next_action = agent.target.expected(next_quantiles, batch["next_obs"]).argmax(-1)
        next_quantiles = of_action(next_quantiles, next_action)
        target = batch["reward"][:, None] + batch["discount"][:, None] * next_quantiles
    quantiles = of_action(agent.distributions(batch["obs"]), agent.action_index(batch))
    losses = quantile_huber_loss(quantiles, target, quantile_midpoints(quantiles.shape[-1]).to(quantiles.device))
    return losses.mean(), {"q_values": quantiles.detach().mean()}


@algorithm("qr_dqn", Config, agent=agent, explorer=explorer, actions=("discrete",))
def qr_dqn(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
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
    train = TrainOneStep(ctx.learner, loss, targets=Target(every=cfg.target_every))
    replay = (
        ctx.samples(shards, synchronous=True)
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights(every=cfg.samples_per_round))
    )
    return union(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
