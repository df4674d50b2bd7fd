"""Where each setting of a run comes from: its default, the preset of the environment, a file, the user, and so on."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from raceway.errors import ConfigError

DEFAULT, PRESET, FILE, USER, VARIABLE, ADAPTED = "default", "preset", "file", "user", "variable", "adapted"
"""Sources of a setting. `file` is a config file (`--config`); `variable` is an environment variable of the shell;
`adapted` settings are filled in for the observations, actions or implementation of the environment
(`AlgorithmConfig.for_env`)."""
SOURCES = (USER, FILE, PRESET, ADAPTED, VARIABLE, DEFAULT)
"""All sources, in the order in which they are shown."""
SOURCE_LABELS = {
    USER: "you", FILE: "file", PRESET: "preset", ADAPTED: "adapted", VARIABLE: "environment variable",
    DEFAULT: "default",
}  # fmt: skip
"""The sources as the help and `--print-config` call them."""
Sources = Mapping[str, str]
"""The source of each setting, by its name. Settings of runs that older versions made have none."""

_SHOWN_ELSEWHERE = ("env", "run_dir")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def setting_sources(
    config: type[Any], settings: Mapping[str, Any], preset: Mapping[str, Any], from_file: Collection[str] = ()
) -> dict[str, str]:
    """Return the source of every setting of a config.

    Args:
        config: the dataclass of settings.
        settings: the settings that the user set.
        preset: the settings of the preset.
        from_file: names of those that the user set in a config file.
    """
    sources = {field.name: _source(field, settings, preset) for field in dataclasses.fields(config)}
    return {**sources, **dict.fromkeys(from_file, FILE)}


def _source(field: dataclasses.Field[Any], settings: Mapping[str, Any], preset: Mapping[str, Any]) -> str:
    if field.name in settings:
        return USER
    if field.name in preset:
        return PRESET
    return VARIABLE if os.environ.get(field.metadata.get("variable", "")) else DEFAULT


def known_sources(config: type[Any], saved: Mapping[str, Any]) -> dict[str, str]:
    """Return the sources in a file of the settings of a config, without names and sources that are unknown."""
    names = {field.name for field in dataclasses.fields(config)}
    return {name: source for name, source in saved.items() if name in names and source in SOURCES}


def adapted_sources(sources: Sources, cfg: Any, adapted: Any) -> dict[str, str]:
    """Return the sources of a config that was adapted to an environment, from those of the config before.

    A value that the user set is only written in another way, such as a path.
    """
    names = [field.name for field in dataclasses.fields(cfg)]
    changed = [name for name in names if getattr(cfg, name) is not getattr(adapted, name)]
    filled_in = [name for name in changed if getattr(cfg, name) is None or sources.get(name) not in (USER, FILE)]
    return {**sources, **dict.fromkeys(filled_in, ADAPTED)}


def check_settings_used(unused: Mapping[str, str], cfg: Any, sources: Sources, otherwise: Callable[[], Any]) -> None:
    """Refuse settings of the user that have no effect.

    Args:
        unused: the reason why a setting has no effect, by its name.
        cfg: the config.
        sources: the source of each of its settings.
        otherwise: returns the config without settings of the user. A file may repeat what is in it.
    """
    for name, reason in unused.items():
        value, source = getattr(cfg, name), sources.get(name)
        if source == USER or (source == FILE and value != getattr(otherwise(), name)):
            option = f"{name} {format_setting(value)}"
            raise ConfigError(f"{option} has no effect with this network: {reason}. Leave {name} out.")


def describe_sources(
    cfg: Any, sources: Sources, env: str, shown: Sequence[str] = SOURCES[:-1], width: int = 110
) -> list[str]:
    """Return the settings as lines of text, grouped by their source. Continued lines are indented.

    Args:
        cfg: the config.
        sources: the source of each of its settings.
        env: the name of the environment.
        shown: the sources that are shown, in order. By default all but the defaults.
        width: the longest line.
    """
    titles = {
        USER: "Set by you", FILE: "From the config file", PRESET: f"Preset for {env}", ADAPTED: f"Adapted to {env}",
        VARIABLE: "From environment variables", DEFAULT: "Defaults",
    }  # fmt: skip
    lines: list[str] = []
    for source in shown:
        names = [name for name in sources if sources[name] == source and name not in _SHOWN_ELSEWHERE]
        texts = [f"{name} {format_setting(getattr(cfg, name))}".replace(" ", _NO_BREAK) for name in names]
        if texts:
            text = f"{titles[source]}: {', '.join(texts)}"
            lines += textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def format_setting(value: Any) -> str:
    """Return a setting as text, in the form that the command line takes.

    >>> format_setting((64, 64)), format_setting(0.0003), format_setting(None), format_setting({"gravity": 1})
    ('64,64', '0.0003', 'none', 'gravity=1')
    """
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(getattr(value, "__name__", value))
