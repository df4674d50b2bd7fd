"""The settings that every algorithm has, in groups. The text under a field is its help on the command line."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from raceway.agents import Policy
from raceway.checks import check_choice, check_fraction, check_int, check_positive
from raceway.envs import EnvSettings, Slots, SteppedSlots
from raceway.errors import ConfigError
from raceway.learner.learner import resolve_device
from raceway.ops import Learner, RolloutSettings
from raceway.rl import LinearSchedule
from raceway.rl.seeding import Purpose, derive_seed

SettingChecks = Mapping[str, Callable[[str, Any], Any]]
"""Functions that refuse invalid values of settings, by the setting's name; see `raceway.checks`."""


def _check_discount(what: str, value: Any) -> None:
    check_positive(what, value)
    check_fraction(what, value)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Seed and length of a run."""

    group: ClassVar[str] = "run"

    seed: int = 0
    """Random seed. With synchronous algorithms, the same seed gives bit-identical results on every engine."""
    iterations: int | None = None
    """Number of training iterations (100, unless total_timesteps or stop_seconds is set)."""
    total_timesteps: int | None = None
    """Stop after N environment steps."""
    stop_return: float | None = None
    """Stop when the mean return of the last 100 episodes reaches X."""
    stop_seconds: float | None = None
    """Stop after X seconds of training."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """The environment and its parallel instances."""

    group: ClassVar[str] = "environment"

    env: Any = "cartpole"
    """Environment: a short name such as cartpole, any Gymnasium id, or module:Id."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    num_envs: int = 100
    """Number of parallel environments, over all shards."""
    vector: str = "auto"
    """How environments are stepped: native (the environment's own vectorised implementation), stepped (one by one),
    envpool, or auto."""
    max_env_failures: int = 10
    """Failure budget of a shard: environment failures with no episode completed in between. Each time, the environment
    is rebuilt and its episode discarded; one more failure ends the run."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Where rollouts are collected, and the failure policy of the workers."""

    group: ClassVar[str] = "workers"

    engine: str = field(
        default_factory=lambda: os.environ.get("RACEWAY_ENGINE") or "process", metadata={"variable": "RACEWAY_ENGINE"}
    )
    """Where workers run: inline (this process), process (processes on this machine, the default) or ray (a cluster)."""
    address: str | None = None
    """Address of a Ray cluster. If not set, Ray is started on this machine."""
    num_workers: int | str = "auto"
    """Number of workers, at most one per shard; auto measures the environment and chooses. Does not affect the
    results."""
    num_shards: int | None = None
    """Number of rollout shards, the upper limit on workers (default: at most 20, or 5 if the environment has a native
    vectorised implementation, such as CartPole). Affects the results, as num_envs does."""
    item_deadline: float | None = 600.0
    """Timeout in seconds for one rollout; a worker that exceeds it is killed and restarted."""
    max_restarts: int = 10
    """Restart budget of a worker, counted over a minute, or over the time of max_restarts + 1 timeouts if that is
    longer. One more failure ends the run."""


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """The optimiser, which is Adam, and where it computes."""

    group: ClassVar[str] = "optimiser"

    lr: float = 3e-4
    """Learning rate."""
    lr_end: float | None = None
    """Final learning rate, after linear decay over total_timesteps. Without either, the learning rate is constant."""
    max_grad_norm: float | None = None
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    device: str = "auto"
    """Device of the learner: cpu, cuda, or auto (cuda if available)."""
    learner_threads: int = 1
    """CPU threads of the learner. Affects the last bits of the results."""


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Run directory, checkpoints and evaluation."""

    group: ClassVar[str] = "output"

    run_dir: str | None = None
    """Run directory: config, metrics, checkpoints and plots (runs/<algorithm>-<env>-<seed>-<time>)."""
    save_every: int | None = None
    """Save a checkpoint every N environment steps."""
    save_seconds: float = 120.0
    """Save a checkpoint every X seconds; 0 to disable. A checkpoint is always saved at the end of a run."""
    keep: int = 3
    """Number of latest checkpoints to keep, besides the best one."""
    eval_every: int | None = None
    """Evaluate the policy every N environment steps, and keep the checkpoint of the best evaluation."""
    eval_episodes: int = 10
    """Episodes per evaluation."""
    metrics_interval: float = 0.25
    """Minimum seconds between two rows of metrics: iterations that end sooner share one. 0: a row per iteration."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(OutputConfig, OptimiserConfig, WorkerConfig, EnvironmentConfig, RunConfig):
    """Settings that every algorithm has. `dataclass` orders fields by the bases from right to left."""

    group: ClassVar[str] = "algorithm"

    kind: ClassVar[str] = "actor"
    """Kind of policy; see `make_policy`."""
    clip_actions: ClassVar[bool] = False
    """Whether actions are clipped to the bounds of the action space before they reach the environment."""
    needs_tasks: ClassVar[bool] = False
    """Whether it is only for environments with tasks."""
    setting_checks: ClassVar[SettingChecks] = {
        **dict.fromkeys(
            ("num_envs", "learner_threads", "iterations", "total_timesteps", "num_shards", "fragment_steps",
             "save_every", "keep", "eval_every", "eval_episodes"), check_int
        ),
        **dict.fromkeys(("stop_seconds", "item_deadline", "lr", "max_grad_norm", "adam_epsilon"), check_positive),
        "gamma": _check_discount,
    }  # fmt: skip
    """Checks of the settings that this class gives a meaning to. Those of the base classes apply as well."""

    network: Any = "mlp"
    """Network: mlp, lstm, or module:function, called with (observation_space, action_space)."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers."""
    gamma: float = 0.99
    """Discount factor γ."""

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ("inline", "process", "ray"))
        if self.address is not None and self.engine != "ray":
            raise ConfigError(f"--address names a Ray cluster, but the engine is {self.engine}. Use --engine ray.")
        check_int("seed", self.seed, 0)
        check_int("max_env_failures", self.max_env_failures, 0)
        check_int("max_restarts", self.max_restarts)
        self._run_setting_checks()
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number, not {value!r}")
        _check_widths(self.hidden)
        if not self.save_seconds >= 0:
            raise ConfigError(f"save_seconds must be a number of seconds, or 0 for never, not {self.save_seconds!r}")
        if not self.metrics_interval >= 0:
            raise ConfigError(f"metrics_interval must be a number of seconds, or 0, not {self.metrics_interval!r}")
        if self.num_workers != "auto":
            check_int("num_workers", self.num_workers)
        if self.num_shards is not None and self.num_envs % self.num_shards:
            raise ConfigError(
                f"num_envs {self.num_envs} cannot be divided into {self.num_shards} shards. Make it a multiple."
            )
        if isinstance(self.network, str) and ":" not in self.network:
            check_choice("network", self.network, ("mlp", "lstm"))
        if hasattr(self, "learner_on"):
            check_choice("place of the learner", self.learner_on, ("driver", "thread", "actor"))
        if getattr(self, "activation", None) is not None:
            check_choice("activation", self.activation, ("relu", "tanh"))  # type: ignore[attr-defined]

    def _run_setting_checks(self) -> None:
        """Check every setting by the check of the most derived class that has one for it."""
        checks: dict[str, Callable[[str, Any], Any]] = {}
        for cls in reversed(type(self).__mro__):
            checks |= vars(cls).get("setting_checks", {})
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if setting.name in checks and not (value is None and _allows_none(setting.type)):
                checks[setting.name](setting.name, value)

    def for_env(self, slots: Slots) -> Self:
        """Return this config with the settings that depend on the environment filled in."""
        max_shards = min(20 if isinstance(slots, SteppedSlots) else 5, self.num_envs)
        largest_divisor = next(number for number in range(max_shards, 0, -1) if self.num_envs % number == 0)
        return dataclasses.replace(self, num_shards=self.num_shards or largest_divisor)

    def rollouts(self, env: EnvSettings) -> RolloutSettings:
        """Return the settings of the rollout workers."""
        return RolloutSettings(
            env=env,
            num_shards=self.num_shards or 1,
            slots_per_shard=self.num_envs // (self.num_shards or 1),
            seed=self.seed,
            network=self.network,
            hidden=self.hidden or (),
            kind=self.kind,
            normalise=getattr(self, "normalise_obs", False),
            activation=getattr(self, "activation", None),
            shared=getattr(self, "shared_layers", False),
            clip_actions=self.clip_actions,
            max_env_failures=self.max_env_failures,
            **self.rollout_size,
        )

    @property
    def rollout_size(self) -> dict[str, Any]:
        """Size of one rollout, as arguments of `RolloutSettings`."""
        return {"fragment_steps": self.fragment_steps}  # type: ignore[attr-defined]

    def learner(self, policy: Policy) -> Learner:
        """Return the learner of a policy."""
        settings = {
            "max_grad_norm": self.max_grad_norm,
            "epsilon": self.adam_epsilon,
            "device": resolve_device(self.device),
        }
        settings["remote"] = getattr(self, "learner_on", "driver") != "driver"
        seed = derive_seed(self.seed, Purpose.LEARNER)
        lr = self.linear_schedule(self.lr, self.lr_end)
        return Learner(policy, lr, self.learner_threads, seed=seed, **settings)  # type: ignore[arg-type]

    def linear_schedule(self, start: float, end: float | None) -> LinearSchedule:
        """Return a schedule from `start` to `end` over `total_timesteps`, or a constant one if either is not set."""
        if end is None or self.total_timesteps is None:
            return LinearSchedule(start, start, 1)
        return LinearSchedule(start, end, self.total_timesteps)

    @property
    def num_iterations(self) -> int | None:
        """Maximum number of iterations, if they are limited."""
        if self.iterations is None and self.total_timesteps is None and self.stop_seconds is None:
            return 100
        return self.iterations


def _allows_none(hint: Any) -> bool:
    """Whether a type hint includes None. It may be text, with names that only its module knows."""
    text = hint if isinstance(hint, str) else repr(hint)
    return "None" in text or "Optional" in text


def _check_widths(hidden: Any) -> None:
    if not isinstance(hidden, (list, tuple, type(None))):
        raise ConfigError(f"hidden must be the widths of the hidden layers, such as (64, 64), not {hidden!r}")
    for width in hidden or ():
        check_int("the width of a hidden layer", width)
