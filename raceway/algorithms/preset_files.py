"""Presets: the settings of an algorithm for an environment, from a TOML file beside the algorithm.

A table is named after the environment's id, or is a `[family.<name>]` that lists its `environments`. The `patterns` of
a family match ids or entry points of other environments, which get the same settings unless they have a preset of their
own. `source` says where the values come from; every other key is a setting of the algorithm:

    ["CartPole-v1"]
    source = "Chosen here, on seeds 0 to 2."
    num_envs = 64

    [family.mujoco]
    environments = ["HalfCheetah-v5", "Ant-v5"]
    patterns = ["gymnasium.envs.mujoco.*"]
    source = "CleanRL. Not measured on the others."
    num_envs = 64
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym

from raceway.checks import unknown_name
from raceway.errors import ConfigError
from raceway.settings.field_types import from_file, setting_types

Presets = Mapping[str, Mapping[str, Any]]
"""Settings by environment id."""


@dataclass(frozen=True)
class Preset:
    """A table of a file of presets."""

    family: str | None
    environments: tuple[str, ...]
    patterns: tuple[str, ...]
    """Patterns of ids and entry points of other environments."""
    source: str
    settings: Mapping[str, Any]

    def matches(self, env: str) -> bool:
        """Whether an environment that has no preset of its own belongs to the family."""
        spec = gym.registry.get(env.rpartition(":")[2])
        names = [env] if spec is None else [spec.id, str(spec.entry_point)]
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.patterns)


class PresetFile(Presets):
    """The presets in a TOML file, by the ids that it lists. The file is read on first use."""

    def __init__(self, path: Path, config: type[Any]) -> None:
        self.path, self.config = path, config

    @cached_property
    def tables(self) -> list[Preset]:
        """The tables of the file, in order."""
        return read_tables(self.path, self.config)

    @cached_property
    def _by_env(self) -> dict[str, Preset]:
        return {env: table for table in self.tables for env in table.environments}

    def find(self, env: str) -> Preset | None:
        """Return the preset of an environment: the one that lists it, or else that of its family."""
        return self._by_env.get(env) or next((table for table in self.tables if table.matches(env)), None)

    def __getitem__(self, env: str) -> Mapping[str, Any]:
        return dict(self._by_env[env].settings)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_env)

    def __len__(self) -> int:
        return len(self._by_env)


def find_preset(presets: Presets, env: str) -> dict[str, Any]:
    """Return the settings for an environment, by its id; none if there is no preset for it."""
    if isinstance(presets, PresetFile):
        preset = presets.find(env)
        return {} if preset is None else dict(preset.settings)
    return dict(presets.get(env, {}))


def describe_source(presets: Presets, env: str) -> str:
    """Return where the preset of an environment comes from. The text is empty if there is none."""
    preset = presets.find(env) if isinstance(presets, PresetFile) else None
    if preset is None:
        return "the program that registers the algorithm" if env in presets else ""
    if env in preset.environments:
        return preset.source
    return f"{env} has that of the family {preset.family}. {preset.source}"


def describe_presets(presets: Presets) -> str:
    """Return the environments that have a preset, and the families of others."""
    families = [table.family for table in presets.tables if table.patterns] if isinstance(presets, PresetFile) else []
    others = [f"other environments of the family {family}" for family in families]
    return ", ".join([*presets, *others])


def read_tables(path: Path, config: type[Any]) -> list[Preset]:
    """Return the presets in a file, after checking that `config` has every setting in it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Correct it.") from error
    hints = setting_types(config)
    presets: list[Preset] = []
    for family, environments, table in _tables(document, path):
        title, source, patterns = ", ".join(environments), table.pop("source", None), table.pop("patterns", [])
        if not isinstance(source, str):
            raise ConfigError(f"{path}: the preset for {title} has no `source`. Add one as text.")
        if not isinstance(patterns, list) or (patterns and family is None):
            raise ConfigError(f"{path}: `patterns` is a list, and belongs to a family, not to {title}.")
        for name in table:
            if name not in hints:
                raise unknown_name(f"setting in {path}, for {title},", name, hints)
        for env in environments:
            if any(env in other.environments for other in presets):
                raise ConfigError(f"{path} has two presets for {env}. Remove one.")
        settings = {name: from_file(value, hints[name]) for name, value in table.items()}
        presets.append(Preset(family, tuple(environments), tuple(patterns), " ".join(source.split()), settings))
    return presets


def _tables(document: dict[str, Any], path: Path) -> Iterator[tuple[str | None, list[str], dict[str, Any]]]:
    """Yield every table with the name of its family, if it is one, and the ids of its environments."""
    for key, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(f'{path}: {key!r} is outside of a table. Put it under ["<environment id>"].')
        if key != "family":
            yield None, [key], table
            continue
        for family, shared in table.items():
            if not isinstance(shared, dict) or not isinstance(shared.get("environments"), list):
                raise ConfigError(f"{path}: family {family!r} has no list of `environments`. Add one.")
            yield family, shared.pop("environments"), shared
