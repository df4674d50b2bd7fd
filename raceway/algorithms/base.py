"""What every algorithm has: settings, a context to run in, and a name to be found by."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, ClassVar, Self

from gymnasium import spaces

from raceway.agents import Policy
from raceway.checks import check_choice, check_int, check_positive, unknown_name
from raceway.engine.base import Actor
from raceway.envs import EnvSettings, Purpose, Slots, SteppedSlots, seed_of
from raceway.envs.names import find
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter
from raceway.learner.learner import device_named
from raceway.ops import Learner, ReplaySettings, ReplayShard, RolloutSettings, TrainStats, UpdateWeights
from raceway.rl import Batch, Linear

ACTIONS = {"discrete": spaces.Discrete, "multidiscrete": spaces.MultiDiscrete, "box": spaces.Box}
"""Kinds of action, and their spaces."""
ENTRY_POINTS = "raceway.algorithms"
"""The group of entry points under which other packages register algorithms."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Settings that every algorithm has. The text under a field is its help on the command line."""

    kind: ClassVar[str] = "actor"
    """Of policy; see `make_policy`."""
    clip_actions: ClassVar[bool] = False
    """Whether environments get actions within their bounds."""

    env: Any = "cartpole"
    """Environment: a short name, any Gymnasium id, or module:Id."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for making the environment, as key=value."""
    seed: int = 0
    """Seed of everything that is random. The same seed gives the same bytes on every engine."""
    iterations: int | None = None
    """Training iterations (100, if no other limit on the length is given)."""
    total_timesteps: int | None = None
    """Stop after so many steps of environments."""
    stop_return: float | None = None
    """Stop when the mean return of the last 100 episodes is this high."""
    stop_seconds: float | None = None
    """Stop after so many seconds of training."""
    engine: str = field(default_factory=lambda: os.environ.get("RACEWAY_ENGINE") or "process")
    """Where workers live: inline (this process), process (this machine, the default) or ray (a cluster)."""
    address: str | None = None
    """Address of a Ray cluster; without one, Ray is started on this machine."""
    num_workers: int | str = "auto"
    """Number of workers; auto measures the environment and chooses. The results do not depend on it."""
    num_envs: int = 100
    """Environments that are played at the same time, in all shards together."""
    num_shards: int | None = None
    """Parts that rollouts are divided into: at most so many workers (20; 5 for an environment with a vector of its own,
    such as CartPole). Changes the numbers, as num_envs does."""
    vector: str = "auto"
    """How environments are stepped: native (a vector of its own), stepped (one by one), envpool, or auto."""
    network: Any = "mlp"
    """Network: mlp, lstm, or module:function of (observation_space, action_space)."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers."""
    lr: float = 3e-4
    """Adam step size."""
    lr_end: float | None = None
    """Step size at the end of the run, to which it falls if total_timesteps are given; without it, it stays."""
    gamma: float = 0.99
    """Discount factor."""
    max_grad_norm: float | None = None
    """Norm that gradients are clipped to; without it, they are not."""
    adam_epsilon: float = 1e-8
    """What Adam adds to what it divides by."""
    device: str = "auto"
    """Where the learner computes: cpu, cuda, or auto, which is cuda where there is one."""
    learner_threads: int = 1
    """Threads of the learner. Changes the last bits of the numbers."""
    max_env_failures: int = 10
    """Failures of environments that a shard bears with no episode ended in between: each is made again, its episode
    dropped. One more ends the run; with 0, the first does."""
    item_deadline: float | None = 600.0
    """Seconds that a worker may take for what it collects at a time. One that takes longer hangs, and is killed."""
    max_restarts: int = 10
    """Restarts of a worker within a minute, because it was killed, hung or crashed. One more ends the run."""
    run_dir: str | None = None
    """Folder for config, metrics, checkpoints and plots (runs/<algorithm>-<env>-<seed>-<time>)."""
    save_every: int | None = None
    """Save a checkpoint after so many steps of environments."""
    save_seconds: float = 120.0
    """Save a checkpoint after so many seconds; 0 for never by the clock. The end of a run is always saved."""
    keep: int = 3
    """Checkpoints that are kept: the latest ones, and the best besides."""
    eval_every: int | None = None
    """Evaluate the policy after so many steps of environments. The checkpoint of the best evaluation is kept."""
    eval_episodes: int = 10
    """Episodes of one such evaluation."""

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ("inline", "process", "ray"))
        if self.address is not None and self.engine != "ray":
            raise ConfigError(f"--address is of a Ray cluster, and the engine is {self.engine}. Use --engine ray.")
        check_int("seed", self.seed, 0)
        check_int("max_env_failures", self.max_env_failures, 0)
        check_int("max_restarts", self.max_restarts)
        for name in _WHOLE:
            if getattr(self, name, None) is not None:
                check_int(name, getattr(self, name))
        for name in _POSITIVE:
            if getattr(self, name, None) is not None:
                check_positive(name, getattr(self, name))
        if not self.save_seconds >= 0:
            raise ConfigError(f"save_seconds must be a number of seconds, or 0 for never, not {self.save_seconds!r}")
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

    def for_env(self, slots: Slots) -> Self:
        """Return the same with what depends on the environment filled in."""
        most = min(20 if isinstance(slots, SteppedSlots) else 5, self.num_envs)
        divides = next(number for number in range(most, 0, -1) if self.num_envs % number == 0)
        num_shards = self.num_shards or divides
        if self.num_workers != "auto" and self.num_workers > num_shards:  # type: ignore[operator]
            raise ConfigError(
                f"{self.num_workers} workers need as many shards, and there are {num_shards}. Have at most so many "
                "workers; or, for a new run, set num_shards too (that changes the numbers)."
            )
        return dataclasses.replace(self, num_shards=num_shards)

    def rollouts(self, env: EnvSettings) -> RolloutSettings:
        """Return what workers play."""
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
            **self.amount,
        )

    @property
    def amount(self) -> dict[str, Any]:
        """How much is played for one item, as a setting of `RolloutSettings`."""
        return {"fragment_steps": self.fragment_steps}  # type: ignore[attr-defined]

    def learner(self, policy: Policy) -> Learner:
        """Return what trains a policy."""
        settings = {
            "max_grad_norm": self.max_grad_norm,
            "epsilon": self.adam_epsilon,
            "device": device_named(self.device),
        }
        settings["away"] = getattr(self, "learner_on", "driver") != "driver"
        seed = seed_of(self.seed, Purpose.LEARNER)
        return Learner(policy, self.falling(self.lr, self.lr_end), self.learner_threads, seed=seed, **settings)  # type: ignore[arg-type]

    def falling(self, start: float, end: float | None) -> Linear:
        """Return a number that changes over the length of the run, or if that is not known stays what it is."""
        if end is None or self.total_timesteps is None:
            return Linear(start, start, 1)
        return Linear(start, end, self.total_timesteps)

    @property
    def num_iterations(self) -> int | None:
        """The most iterations, if there is such a limit."""
        if self.iterations is None and self.total_timesteps is None and self.stop_seconds is None:
            return 100
        return self.iterations


@dataclass(frozen=True)
class Context:
    """What a plan runs with."""

    learner: Learner
    workers: Sequence[Actor]
    engine: Any
    policy: str | None = None
    """Its name, if workers play with several."""
    bears: Mapping[str, Any] = field(default_factory=dict)
    """What is put up with of workers, as arguments of `on_failure`."""

    def place(self, on: str, queue: int) -> dict[str, Any]:
        """Return where training happens, as arguments of `for_each`: on the `driver`, a `thread`, or an `actor`."""
        if on == "actor":
            return {"on": self.engine.spawn(LearnerPlace, name="learner"), "queue": queue}
        return {"on": on, "queue": queue}

    def weights(self, to: str = "all", every: int = 1) -> UpdateWeights:
        """Return what sends weights to the workers; see `UpdateWeights`."""
        return UpdateWeights(self.learner, self.workers, to, every, self.policy)

    def replay(self, settings: ReplaySettings) -> list[Actor]:
        """Start actors that hold replay."""
        name = "replay" if self.policy is None else f"{self.policy}-replay"
        numbers = range(settings.num_shards)
        return [self.engine.spawn(ReplayShard, (settings, number), name=f"{name}-{number}") for number in numbers]


_WHOLE = (
    "num_envs", "learner_threads", "iterations", "total_timesteps", "num_shards", "fragment_steps", "num_epochs",
    "num_minibatches", "batch_size", "buffer_size", "learning_starts", "target_every", "num_async", "max_lag",
    "batch_steps", "num_fragments", "learner_queue", "n_step", "save_every", "keep", "eval_every", "eval_episodes",
)  # fmt: skip
_POSITIVE = ("stop_seconds", "item_deadline", "lr", "gamma", "max_grad_norm", "adam_epsilon")


class LearnerPlace:
    """An actor for a learner to live in."""


Plan = Callable[[ParIter[Batch], Any, Context], Iter[TrainStats]]


@dataclass(frozen=True)
class Algorithm:
    """A plan and its settings."""

    name: str
    config: type[Any]
    plan: Plan
    actions: tuple[str, ...]
    """Kinds of action it is for: `discrete`, `multidiscrete`, `box`."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings for environments, by id, where they differ from the config's."""

    @property
    def summary(self) -> str:
        """The first line of its page."""
        module = importlib.import_module(self.plan.__module__)
        return (module.__doc__ or "").strip().partition("\n")[0]

    def settings(self, **settings: Any) -> Any:
        """Return the config, having said what is unknown."""
        names = {one.name for one in dataclasses.fields(self.config)}
        for name in settings:
            if name not in names:
                raise unknown_name(f"setting of {self.name}", name, names)
        return self.config(**{**self.preset(settings), **settings})

    def preset(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings for an environment. If a length is given, the preset's is not wanted."""
        env = settings.get("env", self.config.env)
        preset = dict(self.presets.get(find(env), {})) if isinstance(env, str) else {}
        if any(settings.get(name) is not None for name in _LENGTHS):
            preset = {name: value for name, value in preset.items() if name not in _LENGTHS}
        return preset

    def fits(self, space: spaces.Space) -> bool:
        """Whether it can choose actions of a space."""
        return isinstance(space, tuple(ACTIONS[kind] for kind in self.actions))

    def check_actions(self, space: spaces.Space, env: str) -> None:
        """Refuse an environment whose actions it cannot choose."""
        if not self.fits(space):
            others = [name for name in algorithm_names() if find_algorithm(name).fits(space)]
            raise ConfigError(
                f"{self.name} is for {' and '.join(self.actions)} actions, and {env} has {space}."
                + (f" Use one of: {', '.join(others)}." if others else "")
            )


_LENGTHS = ("iterations", "total_timesteps", "stop_seconds")
_REGISTERED: dict[str, Algorithm] = {}


def algorithm(
    name: str,
    config: type[Any],
    actions: Sequence[str] = ("discrete", "multidiscrete", "box"),
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[Plan], Plan]:
    """Register a plan under a name."""

    def register(plan: Plan) -> Plan:
        _REGISTERED[name] = Algorithm(name, config, plan, tuple(actions), presets or {})
        return plan

    return register


def algorithm_names() -> list[str]:
    """Return the names of all algorithms: a file here, or an entry point of another package."""
    here = importlib.import_module("raceway.algorithms").__path__
    modules = [module.name for module in pkgutil.iter_modules(here)]
    files = [name for name in modules if name != "base" and not name.startswith("_")]
    return sorted({*files, *_REGISTERED, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm by its name."""
    if name not in _REGISTERED:
        names = algorithm_names()
        if name not in names:
            raise unknown_name("algorithm", name, names)
        for point in entry_points(group=ENTRY_POINTS, name=name):
            point.load()
        if name not in _REGISTERED:
            importlib.import_module(f"raceway.algorithms.{name}")
    return _REGISTERED[name]
