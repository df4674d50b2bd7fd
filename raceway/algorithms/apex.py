"""Ape-X: distributed prioritised replay, for DQN.

Paper: Horgan et al. 2018, https://arxiv.org/abs/1803.00933

    store:    rollouts -> transitions over n steps    on every worker
                 ~> shards of prioritised replay
                 -> weights                           to a worker whose weights are old
    replay:   batches drawn from the shards
                 ~> one Adam step                     on the learner
                 -> new priorities, to the shard; target network
    as they come, within limits of how far one may be ahead of the other

Differs from the paper: Adam instead of RMSProp; no dueling heads; new transitions get the highest priority there is,
not one that the worker works out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from raceway.agents import Policy
from raceway.algorithms.base import Context, algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.checks import check_int
from raceway.flow import Iter, ParIter, union_async
from raceway.ops import (
    CountSteps,
    MergeStats,
    ReplaySettings,
    StoreToReplay,
    TrainOneStep,
    TrainStats,
    Transitions,
    UpdatePriorities,
    UpdateTarget,
    parallel_replay,
)
from raceway.rl import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of Ape-X."""

    num_envs: int = 32
    """Environments that are played at the same time, in all shards together."""
    fragment_steps: int = 50
    """Steps that each environment plays for one fragment."""
    batch_size: int = 512
    """Transitions for one step of the optimiser."""
    n_step: int = 3
    """Rewards of one transition."""
    replay_shards: int = 2
    """Actors that replay is divided over."""
    alpha: float = 0.6
    """How much priorities count."""
    beta: float = 0.4
    """How far weights make up for that."""
    epsilon: float = 0.4
    """Chance of an action drawn by chance: εⁱ, with i from 1 to 8 over the environments of a shard."""
    weights_every: int = 1
    """Fragments that a worker plays with the same weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("replay_shards", self.replay_shards)

    @property
    def replay(self) -> ReplaySettings:
        """What replay is."""
        settings = {"num_shards": self.replay_shards, "alpha": self.alpha, "beta": self.beta}
        min_size = max(1, self.learning_starts // (2 * self.replay_shards))
        return dataclasses.replace(super().replay, **settings, min_size=min_size)  # type: ignore[arg-type]


_ATARI = {
    "num_shards": 2, "fragment_steps": 16, "hidden": (512,), "buffer_size": 200_000, "learning_starts": 50_000,
    "steps_per_update": 64, "stacked_frames": True, "total_timesteps": 10_000_000,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 32, "num_shards": 2, "fragment_steps": 16, "hidden": (128, 128), "lr": 1e-3, "lr_end": 0.0,
        "batch_size": 128, "buffer_size": 50_000, "learning_starts": 2000, "steps_per_update": 8,
        "target_every": 100, "epsilon": 0.02, "total_timesteps": 250_000,
    },
    "Acrobot-v1": {
        "num_shards": 2, "fragment_steps": 16, "hidden": (256, 256), "lr": 5e-4, "batch_size": 128,
        "buffer_size": 50_000, "learning_starts": 2000, "steps_per_update": 8, "target_every": 250,
        "total_timesteps": 200_000,
    },
    "LunarLander-v3": {
        "num_shards": 2, "fragment_steps": 16, "hidden": (256, 256), "lr": 5e-4, "batch_size": 128,
        "buffer_size": 100_000, "learning_starts": 2000, "steps_per_update": 8, "target_every": 250,
        "total_timesteps": 500_000,
    },
    "ALE/Pong-v5": _ATARI,
    "ALE/Breakout-v5": _ATARI,
}  # fmt: skip


def loss(policy: Policy, batch: Batch, target: Policy) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted Huber loss of Q(s, a) - (Σ γᵏ r + γⁿ Q'(s', argmax Q(s', ·))); the batch is [N]."""
    with torch.no_grad():
        best = policy(batch["next_obs"], {})[0].argmax(-1, keepdim=True)
        later = target(batch["next_obs"], {})[0].gather(-1, best).squeeze(-1)
        wanted = batch["reward"] + batch["discount"] * later
    values = policy(batch["obs"], {})[0].gather(-1, batch["action"][:, None]).squeeze(-1)
    losses = smooth_l1_loss(values, wanted, reduction="none") * batch["weight"]
    return losses.mean(), {"q_values": values.mean(), "td_error": values - wanted}


@algorithm("apex", Config, actions=("discrete",), presets=PRESETS)
def apex(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay)
    ctx.learner.policy.set_epsilon(cfg.epsilon ** torch.linspace(1, 8, cfg.num_envs // (cfg.num_shards or 1)))
    store = (
        rollouts.for_each(Transitions(cfg.gamma, cfg.n_step))
        .gather_async()
        .for_each(StoreToReplay(shards))
        .for_each(ctx.weights(to="senders", every=cfg.weights_every))
        .for_each(CountSteps(ctx.learner))
    )
    replay = (
        parallel_replay(shards)
        .for_each(TrainOneStep(ctx.learner, partial(loss, target=ctx.learner.target)))
        .for_each(UpdatePriorities())
        .for_each(UpdateTarget(ctx.learner, cfg.target_every))
    )
    return union_async(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
