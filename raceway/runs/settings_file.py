"""Settings of a training from a file: TOML, YAML, JSON, or a run, whose settings are used again.

Settings of the caller come first, then those of the file, then the preset of the environment, then the defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from raceway.agents.network_choice import NETWORKS
from raceway.algorithms import Algorithm, algorithm_names, find_algorithm
from raceway.checks import unknown_name
from raceway.envs.multi_agent import is_known_env
from raceway.errors import ConfigError
from raceway.runs.config_file import read_config
from raceway.runs.resume import algorithm_of_run
from raceway.settings.documents import Document, read_document
from raceway.settings.field_types import check_setting, from_file, setting_types

_IMPORTED = ("env", "network")
_ALGORITHM = "algorithm"


class MergedSettings(NamedTuple):
    """The settings of the caller and of a file."""

    values: dict[str, Any]
    from_file: frozenset[str]
    """Names of those that come from the file."""


@dataclass(frozen=True)
class SettingsFile:
    """A file of settings as it was read, once."""

    document: Document
    algorithm: str | None
    """The algorithm that it names."""
    run: Mapping[str, Any] | None = field(default=None, repr=False)
    """The description of the run, if the file is that of a run."""

    @property
    def policies(self) -> dict[str, dict[str, Any]] | None:
        """The policies of the run with several agents that the file is of; else None.

        A policy of the algorithm of the run has only settings that differ from those of the run, which the caller may
        replace.
        """
        tables = None if self.run is None else self.run.get("policies")
        if tables is None:
            return None
        for name, table in tables.items():
            imported, network = table.get("algorithm_import"), table["config"]["network"]
            if imported is not None and imported.rpartition(":")[0] not in sys.modules:
                raise self._pass_policies(name, f"an algorithm of another module, {imported!r}")
            if network not in NETWORKS:
                raise self._pass_policies(name, f"a network of its own, {network!r}")
        return {name: self._policy(table) for name, table in tables.items()}

    def _policy(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return a policy of the run: its agents, algorithm and settings."""
        assert self.run is not None
        algorithm = algorithm_of_run(table)
        own = table["config"]
        if algorithm.name == self.run["algorithm"]:
            run = self.run["config"]
            own = {key: value for key, value in own.items() if key not in run or run[key] != value}
        settings = {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}
        return {"agents": table["agents"], "algorithm": algorithm.import_name or algorithm.name, **settings}

    def _pass_policies(self, name: str, what: str) -> ConfigError:
        return ConfigError(
            f"policy {name!r} of the run in {self.document.path.parent} has {what}, which is not used just because a "
            "file names it. Pass the policies again: policies=..."
        )

    def check_algorithm(self, algorithm: Algorithm) -> None:
        """Refuse a file that names another algorithm."""
        name = self.algorithm
        if name in (None, algorithm.name) or (":" in name and find_algorithm(name) is algorithm):
            return
        raise self.document.error(
            _ALGORITHM, f"the settings are those of {name}, not of {algorithm.name}. Train {name} with them."
        )

    def settings(self, algorithm: Algorithm, replaced: Collection[str] = ()) -> dict[str, Any]:
        """Return the settings, after checking that the algorithm has them and accepts their values.

        Args:
            algorithm: the algorithm.
            replaced: names of settings that are not used, as the caller has them too.
        """
        self.check_algorithm(algorithm)
        hints = setting_types(algorithm.config)
        settings: dict[str, Any] = {}
        for name, value in self.document.values.items():
            if name == _ALGORITHM or (self.run is not None and name == "run_dir"):
                continue
            if name not in hints:
                raise self.document.error(name, unknown_name(f"setting of {algorithm.name}", name, hints))
            if name not in replaced:
                self._check_can_be_used(name, value)
                settings[name] = from_file(value, hints[name])
                try:
                    check_setting(name, settings[name], hints[name])
                except ConfigError as error:
                    raise self.document.error(name, error) from error
        return settings

    def _check_can_be_used(self, name: str, value: Any) -> None:
        """Refuse what the file of a run cannot hold, and modules and clusters that only its name leads to."""
        if self.run is None:
            return
        if not self.run["importable"].get(name, True):
            raise self.document.error(name, f"the {name} of this run cannot be read from its file. Pass it: {name}=...")
        is_imported = name in _IMPORTED and ":" in str(value) and not is_known_env(str(value))
        if is_imported or (name == "address" and value is not None):
            raise self.document.error(
                name, f"the {name} of this run is {value!r}, which is not used just because a file names it. Pass it "
                f"again: --{name} {value}"
            )  # fmt: skip


def read_settings_file(path: str | PathLike[str]) -> SettingsFile:
    """Read a file of settings, or the settings of a run from its directory or its config.json."""
    file = Path(path)
    if file.is_dir():
        return _read_run(file)
    document = read_document(file)
    if isinstance(document.values.get("config"), dict) and "schema" in document.values:
        if file.name != "config.json":
            raise ConfigError(f"{file} is the config.json of a run. Name it config.json, or name the run directory.")
        return _read_run(file.parent)
    algorithm = document.values.get(_ALGORITHM)
    if not isinstance(algorithm, str | None):
        raise document.error(_ALGORITHM, f"algorithm must be the name of one, not {algorithm!r}")
    if algorithm is not None and ":" not in algorithm and algorithm not in (names := algorithm_names()):
        raise document.error(_ALGORITHM, unknown_name(_ALGORITHM, algorithm, names))
    return SettingsFile(document, algorithm)


def open_settings_file(config: str | PathLike[str] | SettingsFile | None) -> SettingsFile | None:
    """Read a file of settings, unless that is done already or there is none."""
    return config if isinstance(config, SettingsFile | None) else read_settings_file(config)


def _read_run(directory: Path) -> SettingsFile:
    about = read_config(directory)
    document = read_document(directory / "config.json").inner("config")
    return SettingsFile(document, about["algorithm"], run=about)


def merge_settings(algorithm: Algorithm, file: SettingsFile | None, settings: Mapping[str, Any]) -> MergedSettings:
    """Return the settings of the caller on top of those of a file."""
    of_file = {} if file is None else file.settings(algorithm, settings)
    return MergedSettings({**of_file, **settings}, frozenset(of_file))
