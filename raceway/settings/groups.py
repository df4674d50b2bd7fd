"""The groups of settings that configs are composed of. The text under a field is its help on the command line.

What a setting is for follows from its group, or is said at the field: which settings determine the results, and which
may change when a run is resumed.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from raceway.settings.field_types import Accepts, Called, Count, PositiveFloat, PositiveInt, annotations_of
from raceway.settings.progress import TIMESTEPS, UPDATES, Progress


@dataclass(frozen=True)
class Role:
    """What a setting is for: the `role` of a group, or in `Annotated` that of one field."""

    affects_results: bool
    may_change: bool
    """Whether it may change when a run is resumed."""


RESULTS = Role(affects_results=True, may_change=False)
"""It determines the results. Settings that say nothing else have this role."""
LENGTH = Role(affects_results=True, may_change=True)
"""It says how long a run is."""
EXECUTION = Role(affects_results=False, may_change=True)
"""It says where and how a run is executed, what it tolerates and what it saves; the results are the same."""
PLACE = Role(affects_results=False, may_change=False)
"""It says where a run is."""
INPUT = Role(affects_results=True, may_change=True)
"""It says where the data is that a run learns from. A resumed run checks that the data is the same."""


@dataclass(frozen=True, kw_only=True)
class LengthConfig:
    """Seed of a run, and the limits to its length that every algorithm has."""

    group: ClassVar[str] = "run"
    role: ClassVar[Role] = LENGTH
    progress: ClassVar[Progress]
    """What a run counts."""

    seed: Annotated[Count, RESULTS] = 0
    """Random seed. With synchronous algorithms, the same seed gives bit-identical results on every engine."""
    iterations: PositiveInt | None = None
    """Number of training iterations."""
    stop_seconds: PositiveFloat | None = None
    """Stop after X seconds of training."""
    stop_eval_return: float | None = None
    """Stop when an evaluation (eval_every) has a mean return of at least X."""
    init_from: Annotated[str | Path | None, RESULTS] = None
    """Start from the weights of another run: its directory. Parts of the agent that both have must be of the same
    shape."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(LengthConfig):
    """Seed and length of a run that collects episodes."""

    group: ClassVar[str] = "run"
    role: ClassVar[Role] = LENGTH
    progress: ClassVar[Progress] = TIMESTEPS

    iterations: PositiveInt | None = None
    """Number of training iterations (100, unless total_timesteps or stop_seconds is set)."""
    total_timesteps: PositiveInt | None = None
    """Stop after N environment steps."""
    stop_return: float | None = None
    """Stop when the mean return of the last 100 episodes reaches X."""


@dataclass(frozen=True, kw_only=True)
class UpdatesConfig(LengthConfig):
    """Seed and length of a run without environment steps."""

    group: ClassVar[str] = "run"
    role: ClassVar[Role] = LENGTH
    progress: ClassVar[Progress] = UPDATES

    total_updates: PositiveInt | None = None
    """Stop after N gradient steps."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentChoice:
    """The environment."""

    group: ClassVar[str] = "environment"
    role: ClassVar[Role] = RESULTS

    env: Any = "cartpole"
    """Environment: a short name such as cartpole, any Gymnasium id, or module:Id."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    vector: Annotated[Literal["auto", "native", "stepped", "envpool"], Called("vector mode")] = "auto"
    """How environments are stepped: native (the environment's own vectorised implementation), stepped (one by one),
    envpool, or auto."""
    last_action_and_reward: bool = False
    """Add the last action and its reward to every observation, as last_action and last_reward: a Dict observation."""


@dataclass(frozen=True, kw_only=True)
class EpisodesConfig(EnvironmentChoice):
    """The environment that episodes are collected in."""

    group: ClassVar[str] = "environment"
    role: ClassVar[Role] = RESULTS
    info_keys: Annotated[tuple[str, ...], EXECUTION] = ()
    """Entries of the info of an episode's last step that are reported as metrics, separated by commas: a gives
    env/a_mean, env/a_min and env/a_max."""
    max_env_failures: Annotated[Count, EXECUTION] = 10
    """Failure budget of a shard: environment failures with no episode completed in between. Each time, the environment
    is rebuilt and its episode discarded; one more failure ends the run."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig(EpisodesConfig):
    """The environment and its parallel instances."""

    group: ClassVar[str] = "environment"
    role: ClassVar[Role] = RESULTS
    num_envs: PositiveInt = 100
    """Number of parallel environments, over all shards."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Where rollouts are collected, and the failure policy of the workers."""

    group: ClassVar[str] = "workers"
    role: ClassVar[Role] = EXECUTION

    engine: Literal["inline", "process", "ray"] = field(
        default_factory=lambda: os.environ.get("RACEWAY_ENGINE") or "process",  # type: ignore[arg-type, return-value]
        metadata={"variable": "RACEWAY_ENGINE"},
    )
    """Where workers run: inline (this process), process (processes on this machine, the default) or ray (a cluster)."""
    address: str | None = None
    """Address of a Ray cluster. If not set, Ray is started on this machine."""
    num_workers: PositiveInt | Literal["auto"] = "auto"
    """Number of workers, at most one per shard; auto measures the environment and chooses. Does not affect the
    results."""
    num_shards: Annotated[PositiveInt | None, RESULTS] = None
    """Number of rollout shards, the upper limit on workers (default: at most 20, or 5 if the environment has a native
    vectorised implementation, such as CartPole). Affects the results, as num_envs does."""
    item_deadline: PositiveFloat | None = 600.0
    """Timeout in seconds for one rollout; a worker that exceeds it is killed and restarted."""
    max_restarts: PositiveInt = 10
    """Restart budget of a worker, counted over a minute, or over the time of max_restarts + 1 timeouts if that is
    longer. One more failure ends the run."""


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """The optimiser, which is Adam, and where it computes."""

    group: ClassVar[str] = "optimiser"
    role: ClassVar[Role] = RESULTS

    lr: PositiveFloat = 3e-4
    """Learning rate."""
    lr_end: float | None = None
    """Final learning rate, after linear decay over total_timesteps. Without either, the learning rate is constant."""
    max_grad_norm: PositiveFloat | None = None
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    adam_epsilon: PositiveFloat = 1e-8
    """Adam's epsilon."""
    device: str = "auto"
    """Device of the learner: cpu, cuda, or auto (cuda if available)."""
    learner_threads: PositiveInt = 1
    """CPU threads of the learner. Affects the last bits of the results, unless losses are compiled."""
    compile_losses: bool = True
    """Compile losses and their gradients where that is possible, on the CPU. Affects the last bits of the results."""


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Run directory, checkpoints and evaluation."""

    group: ClassVar[str] = "output"
    role: ClassVar[Role] = EXECUTION

    run_dir: Annotated[str | Path | None, PLACE] = None
    """Run directory: config, metrics, checkpoints and plots (runs/<algorithm>-<env>-<seed>-<time>)."""
    save_every: PositiveInt | None = None
    """Save a checkpoint every N environment steps."""
    save_seconds: Annotated[float, Accepts("a number of seconds, or 0 for never", lambda value: value >= 0)] = 120.0
    """Save a checkpoint every X seconds; 0 to disable. A checkpoint is always saved at the end of a run."""
    keep: PositiveInt = 3
    """Number of latest checkpoints to keep, besides the best one."""
    eval_every: PositiveInt | None = None
    """Evaluate the policy every N environment steps, and keep the checkpoint of the best evaluation."""
    eval_episodes: PositiveInt = 10
    """Episodes per evaluation."""
    metrics_interval: Annotated[float, Accepts("a number of seconds, or 0", lambda value: value >= 0)] = 0.25
    """Minimum seconds between two rows of metrics: iterations that end sooner share one. 0: a row per iteration."""


GROUPS = (UpdatesConfig, RunConfig, EnvironmentConfig, WorkerConfig, OptimiserConfig, OutputConfig)
"""The groups, in the order of their fields."""


def setting_roles(config: type[Any]) -> dict[str, Role]:
    """Return the role of every field of a config: its own, or that of the class that introduces it."""
    roles: dict[str, Role] = {}
    for cls in reversed(config.__mro__):
        for name, annotation in annotations_of(cls).items():
            own = next((item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, Role)), None)
            roles.setdefault(name, own or vars(cls).get("role", RESULTS))
    return {field.name: roles[field.name] for field in dataclasses.fields(config)}


def changeable_on_resume(config: type[Any]) -> tuple[str, ...]:
    """Return the settings of a config that may change when a run is resumed."""
    return tuple(name for name, role in setting_roles(config).items() if role.may_change)


def settings_without_effect(*configs: type[Any]) -> frozenset[str]:
    """Return the settings of configs that do not affect results."""
    roles = [item for config in configs for item in setting_roles(config).items()]
    return frozenset(name for name, role in roles if not role.affects_results)
