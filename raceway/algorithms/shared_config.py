"""Settings that algorithms of a kind share: those with a policy and values, and those that learn from replay."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from raceway.algorithms.base import AlgorithmConfig
from raceway.flow import RateLimit
from raceway.ops import ReplaySettings, replay_limits
from raceway.rl import Linear


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(AlgorithmConfig):
    """Settings of what learns a policy and values from what was just played."""

    kind: ClassVar[str] = "actor-critic"
    clip_actions: ClassVar[bool] = True

    num_envs: int = 8
    """Environments that are played at the same time, in all shards together."""
    hidden: tuple[int, ...] | None = (64, 64)
    """Widths of the hidden layers, of the policy and of the values."""
    activation: str | None = None
    """What is between them: tanh or relu; tanh, but for pictures, where it is relu."""
    shared_layers: bool = False
    """Whether policy and values are one network with two heads; for pictures they always are."""
    lr_end: float | None = 0.0
    """Step size at the end of the run, to which it falls if total_timesteps are given; without it, it stays."""
    max_grad_norm: float | None = 0.5
    """Norm that gradients are clipped to; without it, they are not."""
    value_coef: float = 0.5
    """Weight of the error of the values."""
    entropy_coef: float = 0.0
    """Weight of the entropy of the policy."""
    normalise_obs: bool = False
    """Normalise observations by what has been seen so far."""
    scale_rewards: bool = False
    """Divide rewards by the spread of discounted returns."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """Settings of what learns the values of choices from replay."""

    kind: ClassVar[str] = "values"

    hidden: tuple[int, ...] | None = (64, 64)
    """Widths of the hidden layers."""
    lr: float = 1e-4
    """Adam step size."""
    max_grad_norm: float | None = 10.0
    """Norm that gradients are clipped to; without it, they are not."""
    batch_size: int = 32
    """Transitions for one step of the optimiser."""
    buffer_size: int = 1_000_000
    """Transitions that replay holds."""
    learning_starts: int = 100
    """Steps of environments before the first of the optimiser."""
    steps_per_update: float = 4.0
    """Steps of environments for one of the optimiser."""
    target_every: int = 2500
    """Steps of the optimiser before the target network takes over the weights."""
    stacked_frames: bool = False
    """Store the frames of stacked pictures once."""

    def falling(self, start: float, end: float | None) -> Linear:
        """Return a number that changes over the length of the run, which the learner counts in what it draws."""
        found = super().falling(start, end)
        return dataclasses.replace(found, over=found.over * self.batch_size / self.steps_per_update)

    @property
    def replay(self) -> ReplaySettings:
        """What replay is."""
        settings = {"capacity": self.buffer_size, "batch_size": self.batch_size, "stacked": self.stacked_frames}
        return ReplaySettings(**settings, seed=self.seed)  # type: ignore[arg-type]

    @property
    def limits(self) -> list[RateLimit]:
        """How far storing and drawing may be ahead of one another."""
        ahead = self.num_envs * self.fragment_steps  # type: ignore[attr-defined]
        ratio = self.batch_size / self.steps_per_update
        return replay_limits(ratio, batch_size=self.batch_size, min_size=self.learning_starts, ahead=ahead)
