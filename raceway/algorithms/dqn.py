"""DQN: deep Q-networks.

Paper: Mnih et al. 2015, https://doi.org/10.1038/nature14236

    store:    rollouts -> transitions        on every worker
                 -> replay
    replay:   batches drawn from it
                 -> one Adam step            on the learner
                 -> target network, weights to all workers
    in turn, so many steps of the optimiser for so many of the environments

Differs from the paper: Adam instead of RMSProp, the Huber loss instead of clipped errors (the same gradient), many
environments at once, and rewards of several steps where a preset says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from raceway.agents import Policy
from raceway.algorithms.base import Context, algorithm
from raceway.algorithms.shared_config import ReplayConfig
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
from raceway.rl import Batch, Linear


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of DQN."""

    num_envs: int = 4
    """Environments that are played at the same time, in all shards together."""
    fragment_steps: int = 1
    """Steps that each environment plays before it is learnt from again."""
    n_step: int = 1
    """Rewards of one transition."""
    epsilon: float = 0.05
    """Chance of an action drawn by chance, in the end."""
    epsilon_steps: int = 100_000
    """Steps of environments over which that chance falls to it from 1."""

    @property
    def updates_a_round(self) -> int:
        """Steps of the optimiser for what all environments play at a time."""
        return max(1, round(self.num_envs * self.fragment_steps / self.steps_per_update))


_ATARI = {
    "num_envs": 8, "num_shards": 2, "fragment_steps": 4, "hidden": (512,), "buffer_size": 100_000,
    "learning_starts": 50_000, "target_every": 250, "epsilon": 0.01, "epsilon_steps": 1_000_000,
    "stacked_frames": True, "total_timesteps": 10_000_000,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 16, "num_shards": 1, "fragment_steps": 16, "hidden": (128, 128), "lr": 1e-3, "lr_end": 0.0,
        "gamma": 0.98, "n_step": 3, "batch_size": 128, "buffer_size": 100_000, "learning_starts": 2000,
        "steps_per_update": 8, "target_every": 100, "epsilon": 0.01, "epsilon_steps": 8000, "total_timesteps": 250_000,
    },
    "Acrobot-v1": {
        "num_envs": 8, "num_shards": 2, "fragment_steps": 16, "hidden": (128, 128), "lr": 5e-4, "lr_end": 0.0,
        "batch_size": 128, "buffer_size": 50_000, "learning_starts": 1000, "target_every": 100,
        "epsilon": 0.04, "epsilon_steps": 12_000, "total_timesteps": 100_000,
    },
    "LunarLander-v3": {
        "num_envs": 8, "num_shards": 2, "fragment_steps": 4, "hidden": (256, 256), "lr": 6.3e-4, "batch_size": 128,
        "buffer_size": 50_000, "learning_starts": 1000, "steps_per_update": 4, "target_every": 250, "epsilon": 0.1,
        "epsilon_steps": 12_000, "total_timesteps": 200_000,
    },
    "ALE/Pong-v5": _ATARI,
    "ALE/Breakout-v5": _ATARI,
}  # fmt: skip


def loss(policy: Policy, batch: Batch, target: Policy) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the Huber loss of Q(s, a) - (r + γ max Q'(s', ·)), where Q' is the target network; the batch is [N]."""
    with torch.no_grad():
        later = target(batch["next_obs"], {})[0].amax(-1)
        wanted = batch["reward"] + batch["discount"] * later
    values = policy(batch["obs"], {})[0].gather(-1, batch["action"][:, None]).squeeze(-1)
    return smooth_l1_loss(values, wanted), {"q_values": values.mean()}


@algorithm("dqn", Config, actions=("discrete",), presets=PRESETS)
def dqn(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay)
    store = (
        rollouts.for_each(Transitions(cfg.gamma, cfg.n_step))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(Explore(ctx.learner, Linear(1.0, cfg.epsilon, cfg.epsilon_steps)))
        .for_each(StoreToReplay(shards))
        .for_each(CountSteps(ctx.learner))
    )
    replay = (
        parallel_replay(shards, synchronous=True)
        .for_each(TrainOneStep(ctx.learner, partial(loss, target=ctx.learner.target)))
        .for_each(UpdateTarget(ctx.learner, cfg.target_every))
        .for_each(ctx.weights(every=cfg.updates_a_round))
    )
    return union(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
