"""Discrete CQL: conservative double Q-learning from a dataset, for discrete actions.

Paper: Kumar et al. 2020, https://arxiv.org/abs/2006.04779

    minibatches of a dataset     on every reader
       -> one Adam step          on the learner
       -> target network
       -> weights                to evaluations

Double DQN's loss, with a penalty. Differs from the paper: Adam, the Huber loss, and the means of returns instead of
quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import smooth_l1_loss

from raceway.agents import EpsilonGreedy, QAgent, Spaces
from raceway.agents.builders import q_network
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import TransitionDatasetConfig
from raceway.algorithms.sources import DatasetSource
from raceway.flow import Iter, ParIter
from raceway.ops import AddDiscounts, LossAndMetrics, Target, TrainOneStep, TrainStats
from raceway.rl import Batch, conservative_penalty, double_q_target
from raceway.settings.field_types import Fraction, NonNegativeFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(TransitionDatasetConfig):
    """Settings of discrete CQL."""

    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers."""
    target_every: PositiveInt = 500
    """Update the target network every N gradient steps."""
    penalty: NonNegativeFloat = 1.0
    """Weight α of the penalty on Q-values of actions other than the dataset's. 0 is double DQN."""
    epsilon: Fraction = 0.05
    """ε of the ε-greedy policy, where actions are sampled: evaluations and recordings are greedy otherwise."""


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer."""
    return EpsilonGreedy(cfg.epsilon)


def loss(agent: QAgent, batch: Batch, *, penalty: float) -> LossAndMetrics:
    """Return Huber(Q(s, a) - y) + α (log Σ exp Q(s, ·) - Q(s, a)), averaged over the batch, [N].

    y = r + γ Q'(s', argmax Q(s', ·)) is double DQN's target; a is the action of the dataset.
    """
    with torch.no_grad():
        both = agent.next_q_values(batch), agent.target.next_q_values(batch)
        td_target = double_q_target(batch["reward"], batch["discount"], *both)
    all_q_values = agent.q_values(batch)
    q_values = all_q_values.gather(-1, agent.action_index(batch)[..., None]).squeeze(-1)
    gaps = conservative_penalty(all_q_values, q_values)
    metrics = {"q_values": q_values.detach().mean(), "conservative_gap": gaps.detach().mean()}
    return smooth_l1_loss(q_values, td_target) + penalty * gaps.mean(), metrics


@algorithm("discrete_cql", Config, agent=q_network, explorer=explorer, actions=("discrete",), source=DatasetSource)
def discrete_cql(minibatches: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    train = TrainOneStep(ctx.learner, partial(loss, penalty=cfg.penalty), targets=Target(every=cfg.target_every))
    return (
        minibatches.for_each(AddDiscounts(cfg.gamma))
        .gather_sync()
        .flatten()
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights())
    )
