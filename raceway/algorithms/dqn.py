"""DQN: deep Q-networks.

Paper: Mnih et al. 2015, https://doi.org/10.1038/nature14236

    store:    rollouts -> transitions        on every worker
                 -> replay
    replay:   sampled batches
                 -> one Adam step            on the learner
                 -> target network
                 -> weights                  to all workers
    in turn, with a fixed number of environment steps per gradient step

Differs from the paper: Adam instead of RMSProp, the Huber loss instead of clipped TD errors (the same gradient),
parallel environments, and optionally n-step returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from raceway.agents import Policy
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.checks import check_fraction, check_int
from raceway.flow import Iter, ParIter, union
from raceway.ops import (
    ConcatBatches,
    CountSteps,
    Explore,
    MergeStats,
    StoreToReplay,
    TrainOneStep,
    TrainStats,
    Transitions,
    UpdateTarget,
    parallel_replay,
)
from raceway.rl import Batch, LinearSchedule


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of DQN."""

    setting_checks: ClassVar = {"n_step": check_int, "epsilon": check_fraction}

    num_envs: int = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: int = 1
    """Steps per environment in one rollout fragment."""
    n_step: int = 1
    """Steps n of the n-step return."""
    epsilon: float = 0.05
    """Final ε of the ε-greedy policy."""
    epsilon_steps: int = 100_000
    """Environment steps over which ε decays linearly from 1."""

    @property
    def updates_per_round(self) -> int:
        """Gradient steps per round of rollout fragments."""
        return max(1, round(self.num_envs * self.fragment_steps / self.steps_per_update))


def loss(policy: Policy, batch: Batch, target: Policy) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of Huber(Q(s, a) - (r + γ max Q'(s', ·))), where Q' is the target network; the batch is [N]."""
    with torch.no_grad():
        next_q = target(batch["next_obs"], {})[0].amax(-1)
        td_target = batch["reward"] + batch["discount"] * next_q
    q_values = policy(batch["obs"], {})[0].gather(-1, batch["action"][:, None]).squeeze(-1)
    return smooth_l1_loss(q_values, td_target), {"q_values": q_values.mean()}


@algorithm("dqn", Config, actions=("discrete",))
def dqn(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay)
    store = (
        rollouts.for_each(Transitions(cfg.gamma, cfg.n_step))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(Explore(ctx.learner, LinearSchedule(1.0, cfg.epsilon, cfg.epsilon_steps)))
        .for_each(StoreToReplay(shards))
        .for_each(CountSteps(ctx.learner))
    )
    replay = (
        parallel_replay(shards, synchronous=True)
        .for_each(TrainOneStep(ctx.learner, partial(loss, target=ctx.learner.target)))
        .for_each(UpdateTarget(ctx.learner, cfg.target_every))
        .for_each(ctx.weights(every=cfg.updates_per_round))
    )
    return union(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
