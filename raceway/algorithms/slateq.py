"""SlateQ: DQN for recommending slates, whose values are decomposed into those of the items on them.

Paper: Ie et al. 2019, https://arxiv.org/abs/1905.12767

    store:    rollouts -> transitions        on every worker
                 -> replay
    replay:   sampled batches
                 -> one Adam step            on the learner, for the items that were chosen
                 -> target network
                 -> weights                  to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the paper: the best slate is found by evaluating all of them, instead of by a linear program or greedily;
the model of the user's choice is part of the observations, instead of learnt; the Huber loss.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from raceway.agents import EpsilonGreedy, Spaces
from raceway.agents.slates import CHOSEN, SlateAgent, slate_network
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.flow import Iter, ParIter, union
from raceway.ops import (
    ConcatBatches,
    CountSteps,
    Explore,
    MergeStats,
    RolloutSettings,
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
    """Settings of SlateQ."""

    env: Any = "slates"
    """Environment of slates: slates, or any whose observations have choice_scores and chosen."""
    slate_size: PositiveInt = 2
    """Number of items on a slate."""
    num_envs: PositiveInt = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 4
    """Steps per environment in one rollout fragment."""
    lr: PositiveFloat = 1e-3
    """Learning rate."""
    buffer_size: PositiveInt = 50_000
    """Capacity of the replay buffer, in transitions."""
    target_every: PositiveInt = 200
    """Update the target network every N gradient steps."""
    epsilon: Fraction = 0.05
    """Final ε of the ε-greedy policy."""
    epsilon_steps: PositiveInt = 10_000
    """Environment steps over which ε decays linearly from 1."""

    def rollouts(self, *arguments: Any, **options: Any) -> RolloutSettings:
        """Return the settings of the rollout workers: what was chosen last is in the last observation."""
        return dataclasses.replace(super().rollouts(*arguments, **options), keep_terminal_obs=True)


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer, whose ε decays from 1."""
    return EpsilonGreedy(1.0)


def loss(agent: SlateAgent, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of Huber(Q̄(s, i) - (r + γ max Q'(s', ·))) for the items i that were chosen; the batch is [N].

    Q'(s', A) = Σ P(i|s', A) Q̄'(s', i) is the value of a slate by the target network. i may be the null item.
    """
    with torch.no_grad():
        td_target = q_target(batch["reward"], batch["discount"], agent.target.next_q_values(batch))
    chosen = batch["next_obs"][CHOSEN].long()
    values = agent.item_values(batch["obs"]).gather(-1, chosen[:, None]).squeeze(-1)
    return smooth_l1_loss(values, td_target), {"q_values": values.mean()}


@algorithm("slateq", Config, agent=slate_network, explorer=explorer, actions=("discrete",))
def slateq(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
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
