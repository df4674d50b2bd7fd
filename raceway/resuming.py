"""Going on with a run: what it was asked to do, which of that may change, and where it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raceway.algorithms import Algorithm, find_algorithm
from raceway.envs.names import find
from raceway.errors import CheckpointError, ConfigError, unknown
from raceway.runs.checkpoints import Checkpoint, Checkpoints
from raceway.runs.directory import as_json, read_config

MAY_CHANGE = (
    "engine", "address", "num_workers", "iterations", "total_timesteps", "stop_return", "stop_seconds", "save_every",
    "save_seconds", "keep", "eval_every", "eval_episodes", "item_deadline", "max_env_failures", "max_restarts",
)  # fmt: skip
"""Settings of a run that may be others when it goes on: how long, where, and what is kept."""


@dataclass(frozen=True)
class Start:
    """Where a run goes on."""

    checkpoint: Checkpoint
    state: Any
    there: Sequence[Path]
    """The checkpoints that there were."""

    @property
    def steps(self) -> int:
        """Steps of environments until there."""
        return int(self.checkpoint.about["steps"])

    def check(self) -> None:
        """Refuse to go on if somebody else has, before the folder was locked."""
        folder = self.checkpoint.path.parent
        if [one.path for one in Checkpoints(folder).all()] != self.there:
            raise ConfigError(f"the run in {folder.parent} has gone on while it was read. Resume it again.")


def start_of(
    run: str | Path, algorithm: Algorithm | None, settings: Mapping[str, Any], *, trust: bool = False
) -> tuple[Algorithm, Any, Start]:
    """Return the algorithm of a run, its settings, and where it goes on.

    Args:
        run: its folder.
        algorithm: that it must be of. If it is given, so are the environment and the network, by whoever asks.
        settings: that are to be others from now on.
        trust: whether modules that the run names may be imported.
    """
    about = read_config(run)
    found = find_algorithm(about["algorithm"])
    if algorithm is not None and algorithm.name != found.name:
        raise ConfigError(f"the run in {run} is of {found.name}, not of {algorithm.name}. Choose another --run-dir.")
    if about["schema"] < 2:
        raise ConfigError(f"the run in {run} was made before there were checkpoints. Train it anew.")
    cfg = _config(found, about, settings, trust=trust)
    checkpoints = Checkpoints(Path(run) / "checkpoints")
    there = [one.path for one in checkpoints.all()]
    checkpoint, state = checkpoints.newest_good()
    same = {"algorithm": found.name, "seed": cfg.seed}
    if about["importable"]["env"]:
        same["env"] = about["env"]["name"]
    for name, wanted in same.items():
        if checkpoint.about.get(name) != wanted:
            raise CheckpointError(
                checkpoint.path, f"it is of another run: its {name} is {checkpoint.about.get(name)!r}, not {wanted!r}"
            )
    return found, dataclasses.replace(cfg, run_dir=str(run)), Start(checkpoint, state, there)


def _config(algorithm: Algorithm, about: Mapping[str, Any], settings: Mapping[str, Any], *, trust: bool) -> Any:
    """Return the settings of a run, with those that are to change."""
    names = [one.name for one in dataclasses.fields(algorithm.config)]
    saved = {name: tuple(value) if isinstance(value, list) else value for name, value in about["config"].items()}
    for name in settings:
        if name not in names:
            raise unknown(f"setting of {algorithm.name}", name, names)
    for name in saved:
        if name not in names:
            raise ConfigError(f"the run has a setting {name!r}, which this version of {algorithm.name} does not know")
    for name, value in settings.items():
        if name not in (*MAY_CHANGE, "env", "network") and as_json(value) != as_json(saved.get(name)):
            raise ConfigError(
                f"{name} may not change when a run is resumed: it is {saved.get(name)!r}, not {value!r}. These may: "
                f"{', '.join(name for name in MAY_CHANGE if name in names)}."
            )
    if not about["importable"]["env_kwargs"] and "env_kwargs" not in settings:
        raise ConfigError(f"env_kwargs of this run hold what a file cannot: {saved['env_kwargs']}. Give them again.")
    made = {**saved, **settings}
    for name in ("env", "network"):
        made[name] = _named(name, about, settings.get(name), trust=trust)
    if settings.get("engine", "ray") != "ray" and "address" not in settings:
        made["address"] = None
    return algorithm.config(**made)


def _named(name: str, about: Mapping[str, Any], given: Any, *, trust: bool) -> Any:
    """Return the environment or network of a run. What has to be imported is given again, or trusted."""
    saved, importable = about["config"][name], about["importable"][name]
    if given is not None and isinstance(given, str) and importable:
        if (find(given) if name == "env" else given) != saved:
            raise ConfigError(f"{name} may not change when a run is resumed: it is {saved!r}, not {given!r}.")
    elif given is None and not importable:
        raise ConfigError(
            f"the {name} of this run is a function, {saved!r}. Give it again: raceway.resume(run, {name}=...)"
        )
    elif given is None and ":" in saved and not trust:
        raise ConfigError(
            f"the {name} of this run is {saved!r}: a module that would be imported. Give it again with --{name} "
            f"{saved}, or let the run import what it names with --trust."
        )
    return saved if given is None else given
