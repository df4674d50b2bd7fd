"""Presets: the settings of an algorithm for an environment, from a TOML file beside the algorithm.

A table is named after the environment's id, or is a `[family.<name>]` that lists its `environments`. `source` says
where the values come from; every other key is a setting of the algorithm:

    ["CartPole-v1"]
    source = "Chosen here, on seeds 0 to 2."
    num_envs = 64

    [family.atari]
    environments = ["ALE/Pong-v5", "ALE/Breakout-v5"]
    source = "RL Baselines3 Zoo."
    hidden = [512]
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from raceway.checks import unknown_name
from raceway.errors import ConfigError

Presets = Mapping[str, Mapping[str, Any]]
"""Settings by environment id."""


class PresetFile(Presets):
    """The presets in a TOML file, by environment id. The file is read on first use."""

    def __init__(self, path: Path, config: type[Any]) -> None:
        self.path, self.config = path, config

    @cached_property
    def _presets(self) -> dict[str, dict[str, Any]]:
        return read_presets(self.path, self.config)

    def __getitem__(self, env: str) -> Mapping[str, Any]:
        return self._presets[env]

    def __iter__(self) -> Iterator[str]:
        return iter(self._presets)

    def __len__(self) -> int:
        return len(self._presets)


def read_presets(path: Path, config: type[Any]) -> dict[str, dict[str, Any]]:
    """Return the presets in a file, by environment id, after checking that `config` has every setting in it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Correct it.") from error
    names = {field.name for field in dataclasses.fields(config)}
    hints = typing.get_type_hints(config)
    presets: dict[str, dict[str, Any]] = {}
    for environments, table in _tables(document, path):
        if not isinstance(table.pop("source", None), str):
            raise ConfigError(f"{path}: the preset for {', '.join(environments)} has no `source`. Add one as text.")
        for name in table:
            if name not in names:
                raise unknown_name(f"setting in {path}, for {', '.join(environments)},", name, names)
        settings = {name: _as_setting(value, hints[name]) for name, value in table.items()}
        for env in environments:
            if env in presets:
                raise ConfigError(f"{path} has two presets for {env}. Remove one.")
            presets[env] = dict(settings)
    return presets


def _tables(document: dict[str, Any], path: Path) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield every table with the ids of its environments."""
    for key, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(f'{path}: {key!r} is outside of a table. Put it under ["<environment id>"].')
        if key != "family":
            yield [key], table
            continue
        for family, shared in table.items():
            if not isinstance(shared, dict) or not isinstance(shared.get("environments"), list):
                raise ConfigError(f"{path}: family {family!r} has no list of `environments`. Add one.")
            yield shared.pop("environments"), shared


def _as_setting(value: Any, hint: Any) -> Any:
    """Return a value from TOML, which has no tuples, as the config has it."""
    has_tuple = any(typing.get_origin(part) is tuple for part in (hint, *typing.get_args(hint)))
    return tuple(value) if isinstance(value, list) and has_tuple else value
