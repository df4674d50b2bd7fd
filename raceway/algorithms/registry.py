"""The registry of algorithms: one file per algorithm in this package, and entry points of other packages."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from gymnasium import spaces

from raceway.algorithms.context import Context
from raceway.algorithms.preset_files import PresetFile, Presets
from raceway.algorithms.setting_sources import setting_sources
from raceway.checks import unknown_name
from raceway.envs.names import resolve_env_id
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter
from raceway.ops import TrainStats
from raceway.rl import Batch

ACTIONS = {"discrete": spaces.Discrete, "multidiscrete": spaces.MultiDiscrete, "box": spaces.Box}
"""Kinds of action, and their spaces."""
ENTRY_POINTS = "raceway.algorithms"
"""The group of entry points under which other packages register algorithms."""
PlanFunction = Callable[[ParIter[Batch], Any, Context], Iter[TrainStats]]
"""A function that builds a plan from a stream of rollouts, a config and a context."""

_NOT_ALGORITHMS = {"config", "context", "preset_files", "registry", "setting_sources", "shared_config"}
_TRAIN_ARGUMENTS = {"callbacks", "progress", "resume"}
_LENGTHS = ("iterations", "total_timesteps", "stop_seconds")
_registered: dict[str, Algorithm] = {}


@dataclass(frozen=True)
class Algorithm:
    """A plan and its settings."""

    name: str
    config: type[Any]
    plan: PlanFunction
    actions: tuple[str, ...]
    """Kinds of action it supports: `discrete`, `multidiscrete`, `box`."""
    presets: Presets = field(default_factory=dict)
    """Settings by environment id, where they differ from the config's defaults."""

    @property
    def summary(self) -> str:
        """First line of the docstring of its module."""
        module = importlib.import_module(self.plan.__module__)
        return (module.__doc__ or "").strip().partition("\n")[0]

    def settings(self, **settings: Any) -> Any:
        """Return the config with these settings and the preset of the environment. Unknown settings are an error."""
        names = {field.name for field in dataclasses.fields(self.config)}
        for name in settings:
            if name not in names:
                # Settings and the arguments of `train` are written side by side, so either may have been meant.
                raise unknown_name(f"setting of {self.name}", name, (names | _TRAIN_ARGUMENTS) - {name})
        return self.config(**{**self.preset(settings), **settings})

    def sources(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return where each setting of the config with these settings comes from; see `setting_sources`."""
        return setting_sources(self.config, settings, self.preset(settings))

    def preset(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the preset of the environment in `settings`, without its length if `settings` have one."""
        env = settings.get("env", self.config.env)
        preset = dict(self.presets.get(resolve_env_id(env), {})) if isinstance(env, str) else {}
        if any(settings.get(name) is not None for name in _LENGTHS):
            preset = {name: value for name, value in preset.items() if name not in _LENGTHS}
        return preset

    @property
    def needs_tasks(self) -> bool:
        """Whether it is only for environments with tasks; see `raceway.envs.tasks`."""
        return getattr(self.config, "needs_tasks", False)

    def fits(self, space: spaces.Space) -> bool:
        """Whether it supports the actions of a space."""
        return isinstance(space, tuple(ACTIONS[kind] for kind in self.actions))

    def check_actions(self, space: spaces.Space, env: str) -> None:
        """Refuse an environment whose actions it does not support."""
        if not self.fits(space):
            algorithms = [find_algorithm(name) for name in algorithm_names()]
            others = [other.name for other in algorithms if other.fits(space) and not other.needs_tasks]
            raise ConfigError(
                f"{self.name} is for {' and '.join(self.actions)} actions, and {env} has {space}."
                + (f" Use one of: {', '.join(others)}." if others else "")
            )


def algorithm(
    name: str,
    config: type[Any],
    actions: Sequence[str] = ("discrete", "multidiscrete", "box"),
    presets: Presets | None = None,
) -> Callable[[PlanFunction], PlanFunction]:
    """Register a plan function under a name.

    Args:
        name: name of the algorithm.
        config: its dataclass of settings.
        actions: kinds of action it supports.
        presets: settings by environment id; by default those in `presets/<name>.toml` beside its module, if any.
    """

    def register(plan: PlanFunction) -> PlanFunction:
        own_presets = _preset_file(name, config, plan) if presets is None else presets
        _registered[name] = Algorithm(name, config, plan, tuple(actions), own_presets)
        return plan

    return register


def _preset_file(name: str, config: type[Any], plan: PlanFunction) -> Presets:
    module = getattr(sys.modules.get(plan.__module__), "__file__", None)
    path = Path(module or "").parent / "presets" / f"{name}.toml"
    return PresetFile(path, config) if module and path.exists() else {}


def algorithm_names() -> list[str]:
    """Return the names of all algorithms: files of this package and entry points of others."""
    package = importlib.import_module("raceway.algorithms")
    files = {module.name for module in pkgutil.iter_modules(package.__path__)} - _NOT_ALGORITHMS
    return sorted({*files, *_registered, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm by its name, after importing its module."""
    if name not in _registered:
        names = algorithm_names()
        if name not in names:
            raise unknown_name("algorithm", name, names)
        for point in entry_points(group=ENTRY_POINTS, name=name):
            point.load()
        if name not in _registered:
            importlib.import_module(f"raceway.algorithms.{name}")
    return _registered[name]
