"""The configs that algorithms derive theirs from: the groups of `raceway.settings`, and what a run gets from them.

`TrainingConfig` has what every algorithm has, `AlgorithmConfig` also what collecting rollouts needs.

A config's types say which values it accepts (see `raceway.settings.field_types`); `__post_init__` checks them, and what
involves several settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from raceway.agents import Agent, Explorer, Spaces
from raceway.checks import check_int
from raceway.envs import EnvSettings, Slots, SteppedSlots
from raceway.errors import ConfigError
from raceway.learner.learner import resolve_device
from raceway.ops import Learner, RolloutSettings
from raceway.rl import LinearSchedule
from raceway.rl.seeding import Purpose, derive_seed
from raceway.settings.field_types import Discount, Network, Widths, check_settings
from raceway.settings.groups import (
    EnvironmentChoice,
    EnvironmentConfig,
    LengthConfig,
    OptimiserConfig,
    OutputConfig,
    RunConfig,
    WorkerConfig,
)
from raceway.settings.progress import UPDATES


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(OutputConfig, OptimiserConfig, WorkerConfig, EnvironmentChoice, LengthConfig):
    """Settings that every algorithm has. `dataclass` orders fields by the bases from right to left."""

    group: ClassVar[str] = "algorithm"

    clip_actions: ClassVar[bool] = False
    """Whether actions are clipped to the bounds of the action space before they reach the environment."""
    global_state: ClassVar[bool] = False
    """Whether its fragments have the `state()` of environments with several agents, for a centralised critic."""
    needs_tasks: ClassVar[bool] = False
    """Whether it is only for environments with tasks."""

    network: Network = "mlp"
    """Network: mlp, lstm, gru, or module:function, called with (observation_space, action_space)."""
    hidden: Widths | None = None
    """Widths of the hidden layers."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.address is not None and self.engine != "ray":
            raise ConfigError(f"--address names a Ray cluster, but the engine is {self.engine}. Use --engine ray.")
        if self.stop_eval_return is not None and self.eval_every is None:
            raise ConfigError(
                f"stop_eval_return {self.stop_eval_return:g} is a mean return of evaluations, and there are none. Set "
                "eval_every too."
            )

    def check_complete(self, *, limited: bool = False) -> None:
        """Refuse to train if a setting is missing that a plan can be shown without.

        Args:
            limited: whether something other than a setting ends the training.
        """

    def for_env(self, slots: Slots) -> Self:
        """Return this config with the settings that depend on the environment filled in."""
        return self

    def learner(self, agent: Agent) -> Learner:
        """Return the learner of an agent."""
        settings = {
            "max_grad_norm": self.max_grad_norm,
            "epsilon": self.adam_epsilon,
            "device": resolve_device(self.device),
            "compiled": self.compile_losses,
        }
        settings["remote"] = getattr(self, "learner_on", "driver") != "driver"
        settings["counts_updates"] = self.progress is UPDATES
        seed = derive_seed(self.seed, Purpose.LEARNER)
        lr = self.linear_schedule(self.lr, self.lr_end)
        return Learner(agent, lr, self.learner_threads, seed=seed, **settings)  # type: ignore[arg-type]

    def linear_schedule(self, start: float, end: float | None) -> LinearSchedule:
        """Return a schedule from `start` to `end` over the whole run, or a constant one if either is not set."""
        if end is None or self.total_steps is None:
            return LinearSchedule(start, start, 1)
        return LinearSchedule(start, end, self.total_steps)

    @property
    def total_steps(self) -> int | None:
        """The limit on what the run counts: `total_timesteps`, or `total_updates`."""
        limit: int | None = getattr(self, self.progress.setting)
        return limit

    @property
    def num_iterations(self) -> int | None:
        """Maximum number of iterations, if they are limited."""
        return self.iterations


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(TrainingConfig, EnvironmentConfig, RunConfig):
    """Settings of algorithms that collect rollouts."""

    gamma: Discount = 0.99
    """Discount factor γ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_shards is not None and self.num_envs % self.num_shards:
            raise ConfigError(
                f"num_envs {self.num_envs} cannot be divided into {self.num_shards} shards. Make it a multiple."
            )

    def for_env(self, slots: Slots) -> Self:
        """Return this config with the settings that depend on the environment filled in."""
        max_shards = min(20 if isinstance(slots, SteppedSlots) else 5, self.num_envs)
        largest_divisor = next(number for number in range(max_shards, 0, -1) if self.num_envs % number == 0)
        return dataclasses.replace(self, num_shards=self.num_shards or largest_divisor)

    def rollouts(
        self,
        env: EnvSettings,
        agent: Callable[[Spaces], Agent],
        explorer: Callable[[Spaces], Explorer] | None = None,
    ) -> RolloutSettings:
        """Return the settings of the rollout workers.

        Args:
            env: the environment.
            agent: makes the agent.
            explorer: makes the explorer; by default actions are sampled from the policy.
        """
        return RolloutSettings(
            env=env,
            num_shards=self.num_shards or 1,
            slots_per_shard=self.slots_per_shard,
            seed=self.seed,
            agent=agent,
            explorer=explorer,
            clip_actions=self.clip_actions,
            info_keys=tuple(self.info_keys),
            max_env_failures=self.max_env_failures,
            **self.rollout_size,
        )

    @property
    def slots_per_shard(self) -> int:
        """Environments that are stepped together."""
        return self.num_envs // (self.num_shards or 1)

    @property
    def rollout_size(self) -> dict[str, Any]:
        """Size of one rollout, as arguments of `RolloutSettings`."""
        return {"fragment_steps": check_int("fragment_steps", self.fragment_steps)}  # type: ignore[attr-defined]

    @property
    def num_iterations(self) -> int | None:
        """Maximum number of iterations, if they are limited."""
        return default_iterations(self)


def default_iterations(cfg: RunConfig) -> int | None:
    """Return the limit to the iterations of a run that collects episodes: 100, if it has no limit of its own."""
    if cfg.iterations is None and cfg.total_timesteps is None and cfg.stop_seconds is None:
        return 100
    return cfg.iterations
