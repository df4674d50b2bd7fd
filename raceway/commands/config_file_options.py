"""`--config FILE`, which sets settings from a file, and `--print-config`, which prints the settings as such a file."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
import tomllib
from typing import TYPE_CHECKING, Any

from raceway.errors import ConfigError

if TYPE_CHECKING:
    from raceway.algorithms import Algorithm
    from raceway.commands.config_options import OptionGroup
    from raceway.runs.settings_file import MergedSettings, SettingsFile


def add_config_options(group: OptionGroup) -> None:
    """Add the options."""
    group.add_argument(
        "--config", metavar="FILE",
        help="Settings from a file: .toml, .yaml or .json, or a run directory, to train with the settings of that run. "
        "Options take precedence.",
    )  # fmt: skip
    group.add_argument(
        "--print-config", action="store_true", help="Print the settings as a file for --config, and exit."
    )


def config_option(arguments: list[str]) -> str | None:
    """Return the value of --config among arguments that are not parsed yet."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    path: str | None = parser.parse_known_args(arguments)[0].config
    return path


def read_config_option(options: argparse.Namespace) -> SettingsFile | None:
    """Return the file that --config names."""
    from raceway.runs.settings_file import open_settings_file

    return open_settings_file(options.config)


def policies_option(options: argparse.Namespace, file: SettingsFile | None) -> str | None:
    """Return the value of --policies for the policies of a command; those of a run have to be written to a file."""
    policies: str | None = options.policies
    of_run = policies is None and file is not None and file.run is not None and "policies" in file.run
    return "POLICIES.toml" if of_run else policies


def config_text(algorithm: Algorithm, settings: MergedSettings, policies: str | None = None) -> str:
    """Return the settings of a training as TOML, each with its source, in the form that --config reads.

    TOML has no null: a setting that is not set is a comment, or "none" if without it there would be a value.

    Args:
        algorithm: the algorithm.
        settings: its settings.
        policies: the value of --policies that belongs to them, which is no setting.
    """
    from raceway.algorithms.setting_sources import DEFAULT, SOURCE_LABELS
    from raceway.commands.config_options import GROUPS, default_settings, field_groups
    from raceway.settings.toml_text import toml_value

    cfg, sources = algorithm.settings(**settings.values), algorithm.sources(*settings)
    groups = field_groups(algorithm.config)
    names = [field.name for field in dataclasses.fields(cfg)]
    written = {name: getattr(cfg, name) for name in names if getattr(cfg, name) is not None}
    otherwise = {**default_settings(algorithm.config), **algorithm.preset(written)}
    lines = [
        *_heading(algorithm, settings.values, policies),
        f"algorithm = {toml_value(algorithm.import_name or algorithm.name)}",
    ]
    for group in GROUPS:
        lines += ["", f"# {group}"]
        for name in (name for name in names if groups[name] == group):
            if name not in written and otherwise[name] is None:
                lines.append(f"# {name} is not set")
            else:
                label = SOURCE_LABELS[sources.get(name, DEFAULT)]
                lines.append(f"{name} = {_toml(name, written.get(name, 'none'))}  # {label}")
    return "\n".join(lines)


def _heading(algorithm: Algorithm, values: dict[str, Any], policies: str | None) -> list[str]:
    command = f"raceway train {algorithm.name} --config FILE" + (f" --policies {policies}" if policies else "")
    source = algorithm.preset_source(values)
    text = f"Settings for: {command}." + (f" Source of the preset: {source}" if source else "")
    return textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="# ")


def _toml(name: str, value: Any) -> str:
    """Return a setting as TOML, after checking that it is the same when it is read."""
    from raceway.settings.toml_text import toml_value

    advice = "Leave it out, and pass it as an option beside --config."
    try:
        text = toml_value(value)
    except ValueError as error:
        raise ConfigError(f"{name} cannot be written to a config file: {error}. {advice}") from error
    if tomllib.loads(f"value = {text}")["value"] != (list(value) if isinstance(value, tuple) else value):
        raise ConfigError(f"{name} cannot be written to a config file: {value!r} would be read as {text}. {advice}")
    return text
