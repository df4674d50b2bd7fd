"""Dueling DQN: a network with separate streams for the value of a state and the advantages of actions.

Paper: Wang et al. 2016, https://arxiv.org/abs/1511.06581

    store:    rollouts -> transitions        on every worker
                 -> replay
    replay:   sampled batches
                 -> one Adam step            on the learner
                 -> target network
                 -> weights                  to all workers
    in turn, with a fixed number of environment steps per gradient step

Targets are those of double DQN, as in the paper.

Differs from the paper: Adam instead of RMSProp; the gradient that enters the shared layers is not divided by √2;
uniform replay only; parallel environments, and optionally n-step returns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from raceway.agents import EpsilonGreedy, QAgent, Spaces
from raceway.agents.q_agents import feature_layers, headed_policy, num_actions
from raceway.agents.q_heads import Dueling
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
from raceway.rl import Batch, Fragment, LinearSchedule, double_q_target
from raceway.settings.field_types import Fraction, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of dueling DQN."""

    num_envs: PositiveInt = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 1
    """Steps per environment in one rollout fragment."""
    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers. The last one is that of a layer in each stream."""
    n_step: PositiveInt = 1
    """Steps n of the n-step return."""
    epsilon: Fraction = 0.05
    """Final ε of the ε-greedy policy."""
    epsilon_steps: PositiveInt = 100_000
    """Environment steps over which ε decays linearly from 1."""


def agent(spaces: Spaces, cfg: Config) -> QAgent:
    """Return an agent whose network ends in a stream for V(s) and one for A(s, ·)."""
    *hidden, width = cfg.hidden or (None,)
    trunk, size = feature_layers(spaces, cfg, hidden, own_width=width)
    return QAgent(headed_policy(spaces, cfg, trunk, Dueling(size, num_actions(spaces), width)))


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer, whose ε decays from 1."""
    return EpsilonGreedy(1.0)


def loss(agent: QAgent, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of Huber(Q(s, a) - (r + γ Q'(s', argmax Q(s', ·)))), where Q' is the target network.

    Q(s, a) is V(s) + A(s, a) - mean A(s, ·). The batch is [N].
    """
    with torch.no_grad():
        both = agent.next_q_values(batch), agent.target.next_q_values(batch)
        td_target = double_q_target(batch["reward"], batch["discount"], *both)
    q_values = agent.q_values(batch).gather(-1, agent.action_index(batch)[:, None]).squeeze(-1)
    return smooth_l1_loss(q_values, td_target), {"q_values": q_values.mean()}


@algorithm("dueling_dqn", Config, agent=agent, explorer=explorer, actions=("discrete",))
def dueling_dqn(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
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
