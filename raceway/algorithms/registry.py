"""The registry of algorithms: one file per algorithm in this package, and entry points of other packages."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from gymnasium import spaces

from raceway.agents import Agent, Explorer, MakeAgent, Sample, Spaces
from raceway.agents.builders import actor
from raceway.algorithms.context import Context
from raceway.algorithms.preset_files import PresetFile, Presets, describe_source, find_preset
from raceway.algorithms.setting_sources import setting_sources
from raceway.algorithms.sources import RolloutSource, Source
from raceway.algorithms.user_modules import algorithm_in_module, import_name
from raceway.checks import check_choice, unknown_name
from raceway.envs import EnvSettings
from raceway.envs.names import resolve_env_id
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter
from raceway.ops import RolloutSettings, TrainStats
from raceway.settings.field_types import setting_types
from raceway.settings.progress import budget_hint

ACTIONS = {"discrete": spaces.Discrete, "multidiscrete": spaces.MultiDiscrete, "box": spaces.Box}
"""Kinds of action, and their spaces."""
ENTRY_POINTS = "raceway.algorithms"
"""The group of entry points under which other packages register algorithms."""
MakeExplorer = Callable[[Spaces, Any], Explorer]
"""Makes the explorer of an algorithm, from the spaces and the algorithm's config."""
PlanFunction = Callable[[ParIter[Any], Any, Context], Iter[TrainStats]]
"""A function that builds a plan from a stream of batches, a config and a context."""

_NOT_ALGORITHMS = {
    *("config", "context", "preset_files", "registry", "setting_sources", "shared_config", "sources", "user_modules")
}
_TRAIN_ARGUMENTS = {"callbacks", "config", "policies", "progress", "resume"}
_LENGTHS = ("iterations", "total_timesteps", "total_updates", "stop_seconds")
_PACKAGE = "raceway.algorithms"
_registered: dict[str, Algorithm] = {}


@dataclass(frozen=True)
class MadeWith:
    """A function of the spaces and a config, with the config filled in. It can be sent to workers."""

    function: Callable[[Spaces, Any], Any]
    cfg: Any

    def __call__(self, spaces: Spaces) -> Any:
        """Return what the function makes for these spaces."""
        return self.function(spaces, self.cfg)


@dataclass(frozen=True)
class Algorithm:
    """A plan and its settings."""

    name: str
    config: type[Any]
    plan: PlanFunction
    agent: MakeAgent
    """Makes its agent, untrained."""
    actions: tuple[str, ...]
    """Kinds of action it supports: `discrete`, `multidiscrete`, `box`."""
    explorer: MakeExplorer | None = None
    """Makes its explorer; by default actions are sampled from the policy."""
    recurrent: bool = False
    """Whether it can train recurrent networks."""
    presets: Presets = field(default_factory=dict)
    """Settings by environment id, where they differ from the config's defaults."""
    source: type[Source] = RolloutSource
    """Where its batches come from."""

    @property
    def summary(self) -> str:
        """First line of the docstring of its module."""
        module = importlib.import_module(self.plan.__module__)
        return (module.__doc__ or "").strip().partition("\n")[0]

    @property
    def import_name(self) -> str | None:
        """The `module:name` by which it is imported, unless its name suffices (or its module is the script itself)."""
        return import_name(self, available_names())

    def settings(self, **settings: Any) -> Any:
        """Return the config with these settings and the preset of the environment. Unknown settings are an error."""
        names = {field.name for field in dataclasses.fields(self.config)}
        for name in settings:
            if name not in names:
                # Settings and the arguments of `train` are written side by side, so either may have been meant.
                hint = budget_hint(name, self.config.progress)
                raise unknown_name(f"setting of {self.name}", name, (names | _TRAIN_ARGUMENTS) - {name}, hint)
        return self.config(**{**self.preset(settings), **settings})

    def sources(self, settings: Mapping[str, Any], from_file: Collection[str] = ()) -> dict[str, str]:
        """Return where each setting of the config with these settings comes from; see `setting_sources`."""
        return setting_sources(self.config, settings, self.preset(settings), from_file)

    def preset(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the preset of the environment in `settings`, without its length if `settings` have one."""
        env = settings.get("env", self.config.env)
        preset = find_preset(self.presets, resolve_env_id(env)) if isinstance(env, str) else {}
        if any(settings.get(name) is not None for name in _LENGTHS):
            preset = {name: value for name, value in preset.items() if name not in _LENGTHS}
        return preset

    def rollouts(self, cfg: Any, env: EnvSettings) -> RolloutSettings:
        """Return the settings of its rollout workers."""
        explorer = None if self.explorer is None else MadeWith(self.explorer, cfg)
        return cfg.rollouts(env, MadeWith(self.agent, cfg), explorer)

    def make_explorer(self, spaces: Spaces, cfg: Any) -> Explorer:
        """Return its explorer."""
        return Sample() if self.explorer is None else self.explorer(spaces, cfg)

    def preset_source(self, settings: Mapping[str, Any]) -> str:
        """Return where the preset of the environment in `settings` comes from, or an empty text."""
        env = settings.get("env", self.config.env)
        return describe_source(self.presets, resolve_env_id(env)) if isinstance(env, str) else ""

    @property
    def needs_tasks(self) -> bool:
        """Whether it is only for environments with tasks; see `raceway.envs.tasks`."""
        return getattr(self.config, "needs_tasks", False)

    def fits(self, space: spaces.Space) -> bool:
        """Whether it supports the actions of a space."""
        return isinstance(space, tuple(ACTIONS[kind] for kind in self.actions))

    def check_memory(self, agent: Agent) -> None:
        """Refuse a recurrent network that it would train without its memory."""
        if agent.actor.recurrent and not self.recurrent:
            others = [other.name for other in self._similar() if other.recurrent]
            raise ConfigError(
                f"{self.name} cannot train a recurrent network. Use --network mlp or another feed-forward one"
                + (f", or one of: {', '.join(others)}." if others else ".")
            )

    def check_actions(self, space: spaces.Space, env: str) -> None:
        """Refuse an environment whose actions it does not support."""
        if not self.fits(space):
            others = [other.name for other in self._similar() if other.fits(space) and not other.needs_tasks]
            raise ConfigError(
                f"{self.name} is for {' and '.join(self.actions)} actions, and {env} has {space}."
                + (f" Use one of: {', '.join(others)}." if others else "")
            )

    def _similar(self) -> list[Algorithm]:
        """Return all algorithms with the same source."""
        algorithms = [find_algorithm(name) for name in algorithm_names()]
        return [other for other in algorithms if other.source is self.source]


def algorithm(
    name: str,
    config: type[Any],
    *,
    agent: MakeAgent = actor,
    explorer: MakeExplorer | None = None,
    actions: Sequence[str] = ("discrete", "multidiscrete", "box"),
    recurrent: bool = False,
    presets: Presets | None = None,
    source: type[Source] = RolloutSource,
) -> Callable[[PlanFunction], PlanFunction]:
    """Register a plan function under a name.

    Args:
        name: name of the algorithm.
        config: its dataclass of settings.
        agent: makes its agent from the spaces and the config. By default the agent has a policy only.
        explorer: makes its explorer from the spaces and the config. By default actions are sampled from the policy.
        actions: kinds of action it supports.
        recurrent: whether it can train recurrent networks.
        presets: settings by environment id; by default those in `presets/<name>.toml` beside its module, if any.
        source: where its batches come from. By default they are rollouts.
    """

    def register(plan: PlanFunction) -> PlanFunction:
        for kind in actions:
            check_choice(f"kind of action of the algorithm {name}", kind, ACTIONS)
        for env, preset in (presets or {}).items():
            for setting in preset:
                check_choice(f"setting in the preset of {name} for {env}", setting, setting_types(config))
        if name in _built_in_names() and plan.__module__ != f"{_PACKAGE}.{name}":
            raise ConfigError(f"{name!r} is an algorithm of Raceway. Register {plan.__module__} under another name.")
        own_presets = _preset_file(name, config, plan) if presets is None else presets
        _registered[name] = Algorithm(
            name, config, plan, agent, tuple(actions), explorer, recurrent, own_presets, source
        )
        return plan

    return register


def _preset_file(name: str, config: type[Any], plan: PlanFunction) -> Presets:
    module = getattr(sys.modules.get(plan.__module__), "__file__", None)
    path = Path(module or "").parent / "presets" / f"{name}.toml"
    return PresetFile(path, config) if module and path.exists() else {}


def _built_in_names() -> set[str]:
    return {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])} - _NOT_ALGORITHMS


def available_names() -> set[str]:
    """Return the names of algorithms that any process finds: files of this package, and entry points of others."""
    return {*_built_in_names(), *(point.name for point in entry_points(group=ENTRY_POINTS))}


def algorithm_names() -> list[str]:
    """Return the names of all algorithms: those that any process finds, and those registered in this one."""
    return sorted({*available_names(), *_registered})


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm by its name, or by `module:name`, after importing its module.

    Never call it with a `module:name` from a file that is not trusted.
    """
    if ":" in name:
        return algorithm_in_module(name, _registered.values())
    if name not in _registered:
        names = algorithm_names()
        if name not in names:
            raise unknown_name("algorithm", name, names)
        points = entry_points(group=ENTRY_POINTS, name=name)
        for point in points:
            _load(point)
        if name not in _registered and not points:
            importlib.import_module(f"{_PACKAGE}.{name}")
    return _registered[name]


def _load(point: EntryPoint) -> None:
    """Import the module of an entry point, which registers its algorithm."""
    package = point.dist.name if point.dist else "a package"
    try:
        point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"algorithm {point.name!r} of {package} cannot be imported: {error}. Its entry point is {point.value!r}; "
            "name the module that registers it, and install the package again."
        ) from error
    if point.name not in _registered:
        raise ConfigError(
            f"{package} has an entry point for the algorithm {point.name!r}, but {point.value} does not register it. "
            f"Add @algorithm({point.name!r}, ...) to its plan."
        )
