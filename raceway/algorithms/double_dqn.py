"""Double DQN: the Q-network chooses the next action, and the target network evaluates it.

Paper: van Hasselt et al. 2015, https://arxiv.org/abs/1509.06461

    store:    rollouts -> transitions        on every worker; or sequences
                 -> replay
    replay:   sampled batches
                 -> one Adam step            on the learner
                 -> target network
                 -> weights                  to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the paper: Adam instead of RMSProp, the Huber loss instead of clipped TD errors (the same gradient),
parallel environments, and optionally n-step returns and recurrent networks, as in DQN.
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
    replay_rows,
)
from raceway.rl import Batch, Fragment, LinearSchedule, double_q_target, masked_mean
from raceway.settings.field_types import Count, Fraction, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of double DQN."""

    num_envs: PositiveInt = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 1
    """Steps per environment in one rollout fragment."""
    n_step: PositiveInt = 1
    """Steps n of the n-step return."""
    epsilon: Fraction = 0.05
    """Final ε of the ε-greedy policy."""
    epsilon_steps: PositiveInt = 100_000
    """Environment steps over which ε decays linearly from 1."""
    sequence_steps: PositiveInt = 24
    """Steps of a sequence in replay, for recurrent networks."""
    burn_in: Count = 8
    """Steps at the start of a sequence that only update the recurrent state, and overlap with the sequence before."""


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer, whose ε decays from 1."""
    return EpsilonGreedy(1.0)


def loss(agent: QAgent, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of Huber(Q(s, a) - (r + γ Q'(s', argmax Q(s', ·)))), where Q' is the target network.

    The batch is [N] or, for a recurrent network, sequences, [N, L], of which the mean leaves out burn-in and padding.
    """
    with torch.no_grad():
        both = agent.next_q_values(batch), agent.target.next_q_values(batch)
        td_target = double_q_target(batch["reward"], batch["discount"], *both)
    q_values = agent.q_values(batch).gather(-1, agent.action_index(batch)[..., None]).squeeze(-1)
    losses = smooth_l1_loss(q_values, td_target, reduction="none")
    return masked_mean(losses, batch), {"q_values": masked_mean(q_values, batch)}


@algorithm("double_dqn", Config, agent=q_network, explorer=explorer, actions=("discrete",), recurrent=True)
def double_dqn(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    lengths = {"sequence_steps": cfg.sequence_steps, "burn_in": cfg.burn_in, "fragment_steps": cfg.fragment_steps}
    rows = replay_rows(ctx.learner.agent, cfg.gamma, cfg.n_step, **lengths)
    shards = ctx.replay(cfg.replay_settings, rows.row_steps)
    store = (
        rollouts.for_each(rows)
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
