"""Settings that a family of algorithms shares: actor-critic methods, and Q-learning from replay."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from raceway.algorithms.config import AlgorithmConfig
from raceway.checks import check_int, check_positive
from raceway.flow import RateLimit
from raceway.ops import ReplaySettings, replay_limits
from raceway.rl import LinearSchedule


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(AlgorithmConfig):
    """Settings of on-policy algorithms with a policy and a critic."""

    kind: ClassVar[str] = "actor-critic"
    clip_actions: ClassVar[bool] = True

    num_envs: int = 8
    """Number of parallel environments, over all shards."""
    hidden: tuple[int, ...] | None = (64, 64)
    """Widths of the hidden layers, of the policy and of the critic."""
    activation: str | None = None
    """Activation function: tanh or relu (default: tanh, or relu for image observations)."""
    shared_layers: bool = False
    """Share the hidden layers between policy and critic; with image observations they are always shared."""
    lr_end: float | None = 0.0
    """Final learning rate, after linear decay over total_timesteps. Without either, the learning rate is constant."""
    max_grad_norm: float | None = 0.5
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    value_coef: float = 0.5
    """Coefficient of the value loss."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus."""
    normalise_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""
    scale_rewards: bool = False
    """Divide rewards by the running standard deviation of discounted returns."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """Settings of algorithms that learn Q-values from replay."""

    kind: ClassVar[str] = "values"
    setting_checks: ClassVar = {
        **dict.fromkeys(("batch_size", "buffer_size", "learning_starts", "target_every"), check_int),
        "steps_per_update": check_positive,
    }

    hidden: tuple[int, ...] | None = (64, 64)
    """Widths of the hidden layers."""
    lr: float = 1e-4
    """Learning rate."""
    max_grad_norm: float | None = 10.0
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    batch_size: int = 32
    """Transitions per gradient step."""
    buffer_size: int = 1_000_000
    """Capacity of the replay buffer, in transitions."""
    learning_starts: int = 100
    """Environment steps before the first gradient step."""
    steps_per_update: float = 4.0
    """Environment steps per gradient step."""
    target_every: int = 2500
    """Update the target network every N gradient steps."""
    stacked_frames: bool = False
    """Store each frame of stacked image observations only once."""

    def linear_schedule(self, start: float, end: float | None) -> LinearSchedule:
        """Return a schedule over the run; a learner that trains from replay counts the transitions it sampled."""
        schedule = super().linear_schedule(start, end)
        return dataclasses.replace(schedule, over=schedule.over * self.batch_size / self.steps_per_update)

    @property
    def replay(self) -> ReplaySettings:
        """Settings of the replay buffer."""
        settings = {"capacity": self.buffer_size, "batch_size": self.batch_size, "stacked": self.stacked_frames}
        return ReplaySettings(**settings, seed=self.seed)  # type: ignore[arg-type]

    @property
    def limits(self) -> list[RateLimit]:
        """Rate limits between storing transitions and sampling them."""
        ahead = self.num_envs * self.fragment_steps  # type: ignore[attr-defined]
        ratio = self.batch_size / self.steps_per_update
        return replay_limits(ratio, batch_size=self.batch_size, min_size=self.learning_starts, ahead=ahead)
