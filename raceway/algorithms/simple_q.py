"""Simple Q: Q-learning with a network, a target network and replay, and nothing else.

Paper: Mnih et al. 2013, https://arxiv.org/abs/1312.5602

    store:    rollouts -> transitions        on every worker
                 -> replay
    replay:   sampled batches
                 -> one Adam step            on the learner
                 -> target network
                 -> weights                  to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the paper: a target network, as in the paper of 2015; Adam instead of RMSProp; the Huber loss; parallel
environments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from raceway.agents import EpsilonGreedy, QAgent, Spaces
from raceway.agents.builders import q_network
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
from raceway.rl import Batch, Fragment, LinearSchedule, q_target
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of simple Q."""

    num_envs: PositiveInt = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 1
    """Steps per environment in one rollout fragment."""
    lr: PositiveFloat = 5e-4
    """Learning rate."""
    buffer_size: PositiveInt = 50_000
    """Capacity of the replay buffer, in transitions."""
    target_every: PositiveInt = 500
    """Update the target network every N gradient steps."""
    epsilon: Fraction = 0.02
    """Final ε of the ε-greedy policy."""
    epsilon_steps: PositiveInt = 10_000
    """Environment steps over which ε decays linearly from 1."""


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer, whose ε decays from 1."""
    return EpsilonGreedy(1.0)


def loss(agent: QAgent, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of Huber(Q(s, a) - (r + γ max Q'(s', ·))), where Q' is the target network; the batch is [N]."""
    with torch.no_grad():
        td_target = q_target(batch["reward"], batch["discount"], agent.target.next_q_values(batch))
    q_values = agent.q_values(batch).gather(-1, agent.action_index(batch)[:, None]).squeeze(-1)
    return smooth_l1_loss(q_values, td_target), {"q_values": q_values.mean()}


@algorithm("simple_q", Config, agent=q_network, explorer=explorer, actions=("discrete",))
def simple_q(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    store = (
        rollouts.for_each(Transitions(cfg.gamma))
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
