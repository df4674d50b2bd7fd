"""Resuming a run: its settings, which of them may change, and the checkpoint it resumes from."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.agents import Agent, Weights
from raceway.agents.networks import is_image
from raceway.algorithms import Algorithm, find_algorithm
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.checks import check_int, unknown_name
from raceway.envs.multi_agent import is_known_env
from raceway.envs.names import resolve_env_id
from raceway.errors import CheckpointError, ConfigError
from raceway.file_schemas import schema_mismatch
from raceway.rl.space_json import space_from_json
from raceway.runs.config_file import has_checkpoints, read_config
from raceway.runs.directory import as_json
from raceway.runs.reader import is_running
from raceway.settings.field_types import accepts, setting_types
from raceway.settings.groups import changeable_on_resume

_RESUME_ARGUMENTS = ("callbacks", "progress", "trust")
_REQUIRED_STATE = {"learner": {"policy": dict}, "exploration": dict, "evaluations": dict, "flow": dict}
_LAYER_SIZE_ALLOWED, _LAYER_WIDTH_ALLOWED = 1 << 26, 1 << 16
"""Weights and width of a layer that are always accepted: a custom network may not use these widths at all."""


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a run resumes from."""

    checkpoint: Checkpoint
    state: Any
    checkpoint_paths: Sequence[Path]
    """All checkpoints of the run when this one was read."""

    @property
    def steps(self) -> int:
        """Environment steps up to the checkpoint."""
        return int(self.checkpoint.about["steps"])

    def check_unchanged(self) -> None:
        """Refuse to resume if another process resumed the run before its directory was locked."""
        directory = self.checkpoint.path.parent
        if [checkpoint.path for checkpoint in Checkpoints(directory).all()] != self.checkpoint_paths:
            raise ConfigError(f"the run in {directory.parent} continued while it was read. Resume it again.")

    def check_weights_fit(self, agent: Agent) -> None:
        """Refuse to resume with a network or environment other than the one that was trained."""
        check_weights_fit(agent, self.state["learner"]["policy"], self.checkpoint.path)


def prepare_resume(
    run: str | Path, algorithm: Algorithm | None, settings: Mapping[str, Any], *, trust: bool = False
) -> tuple[Algorithm, Any, ResumePoint]:
    """Return the algorithm of a run, its config with changed settings, and the checkpoint to resume from.

    Args:
        run: the run directory.
        algorithm: the expected algorithm, or None for any.
        settings: settings that change, and an environment or network that a file cannot hold.
        trust: whether modules that the run names may be imported.
    """
    about = read_config(run)
    run_algorithm = algorithm_of_run(about, trust=trust)
    if algorithm is not None and algorithm.name != run_algorithm.name:
        raise ConfigError(
            f"the run in {run} trains {run_algorithm.name}, not {algorithm.name}. Choose another --run-dir."
        )
    if not has_checkpoints(about):
        raise ConfigError(f"the run in {run} was made by a version without checkpoints. Train it again.")
    cfg = _resumed_config(run_algorithm, about, settings, trust=trust)
    checkpoints = Checkpoints(Path(run) / "checkpoints")
    paths = [checkpoint.path for checkpoint in checkpoints.all()]
    if not paths and is_running(run):
        raise ConfigError(f"the run in {run} is being trained, and has no checkpoint yet. Wait for it to end.")
    resume_point = ResumePoint(*checkpoints.newest_readable(), paths)
    _check_state(resume_point)
    check_same_run(resume_point.checkpoint, about)
    if "policies" not in about:
        check_layer_sizes(about, cfg.hidden or (), resume_point.state["learner"]["policy"])
    return run_algorithm, dataclasses.replace(cfg, run_dir=str(run)), resume_point


def _check_state(resume_point: ResumePoint) -> None:
    """Refuse a checkpoint that lacks an entry which every checkpoint has."""
    checkpoint, state = resume_point.checkpoint, resume_point.state
    problem = schema_mismatch(checkpoint.about, {"iterations": int}) or schema_mismatch(state, _REQUIRED_STATE)
    if problem:
        raise CheckpointError(checkpoint.path, f"cannot resume from this checkpoint: {problem}")


def check_same_run(checkpoint: Checkpoint, about: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another run than the one that config.json describes."""
    expected = {"algorithm": about["algorithm"], "seed": about["config"]["seed"]}
    if about["importable"]["env"]:
        expected["env"] = about["env"]["name"]
    for name, value in expected.items():
        saved = checkpoint.about.get(name)
        if saved != value:
            raise CheckpointError(checkpoint.path, f"it belongs to another run: its {name} is {saved!r}, not {value!r}")


def algorithm_of_run(about: Mapping[str, Any], *, trust: bool = False) -> Algorithm:
    """Return the algorithm of a run.

    Its module is not imported just because a file names it, unless the run is trusted; it may be imported already.
    """
    name, imported = about["algorithm"], about.get("algorithm_import")
    if imported is None:
        return find_algorithm(name)
    if imported.rpartition(":")[0] not in sys.modules and not trust:
        raise ConfigError(
            f"the algorithm of this run is {imported!r}, whose module would be imported. Allow it with --trust "
            "(trust=True), or import the module first."
        )
    algorithm = find_algorithm(imported)
    if algorithm.name != name:
        raise ConfigError(f"the algorithm of this run is {name!r}, but {imported} is {algorithm.name!r}")
    return algorithm


def saved_config(about: Mapping[str, Any], *, trust: bool = False, **settings: Any) -> tuple[Algorithm, Any]:
    """Return the algorithm of a run and its config, with some settings replaced."""
    algorithm = algorithm_of_run(about, trust=trust)
    return algorithm, algorithm.config(**{**_saved_settings(algorithm, about), **settings})


def _saved_settings(algorithm: Algorithm, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, after checking their names and types."""
    hints = setting_types(algorithm.config)
    saved = {name: tuple(value) if isinstance(value, list) else value for name, value in about["config"].items()}
    names = {field.name for field in dataclasses.fields(algorithm.config)}
    for name, value in saved.items():
        if name not in names:
            raise ConfigError(f"the run has a setting {name!r}, which this version of {algorithm.name} does not have")
        if about["importable"].get(name, True) and not accepts(value, hints[name]):
            raise ConfigError(f"the run's config.json is corrupt: its setting {name} is {value!r}. Repair it.")
    return saved


def _resumed_config(algorithm: Algorithm, about: Mapping[str, Any], settings: Mapping[str, Any], *, trust: bool) -> Any:
    """Return the config of a run, with the settings that change."""
    names = [field.name for field in dataclasses.fields(algorithm.config)]
    for name in settings:
        if name not in names:
            raise unknown_name(f"setting of {algorithm.name}", name, {*names, *_RESUME_ARGUMENTS} - {name})
    saved = _saved_settings(algorithm, about)
    changeable = changeable_on_resume(algorithm.config)
    for name, value in settings.items():
        if name not in (*changeable, "env", "network") and as_json(value) != as_json(saved.get(name)):
            raise _cannot_change(name, saved.get(name), value, changeable)
    if not about["importable"]["env_kwargs"] and "env_kwargs" not in settings:
        raise ConfigError(
            f"the env_kwargs of this run cannot be read from its file: {saved['env_kwargs']}. Pass them again."
        )
    merged = {**saved, **settings}
    for name in ("env", "network"):
        merged[name] = _env_or_network(name, about, settings.get(name), changeable, trust=trust)
    if settings.get("engine", "ray") != "ray" and "address" not in settings:
        merged["address"] = None
    if merged.get("address") is not None and "address" not in settings and not trust:
        raise ConfigError(
            f"this run was trained on the Ray cluster at {merged['address']!r}. Pass it again with --address "
            f"{merged['address']}, or allow the connection with --trust (trust=True)."
        )
    return algorithm.config(**merged)


def _env_or_network(name: str, about: Mapping[str, Any], value: Any, changeable: Sequence[str], *, trust: bool) -> Any:
    """Return the environment or network that a run resumes with: the caller's value, or the saved name."""
    saved = about["config"][name]
    if value is None:
        return check_trusted(name, saved, importable=about["importable"][name], trust=trust)
    if isinstance(value, str) and about["importable"][name]:
        resolved = resolve_env_id(value) if name == "env" else value
        if resolved != saved:
            raise _cannot_change(name, saved, value, changeable)
    return value


def _cannot_change(name: str, saved: Any, value: Any, changeable: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{name} cannot change when a run is resumed: it is {saved!r}, not {value!r}. These can: "
        f"{', '.join(changeable)}."
    )


def check_trusted(name: str, saved: str, *, importable: bool, trust: bool) -> str:
    """Return the saved environment or network name, after checking that its module may be imported."""
    if not importable:
        raise ConfigError(f"the {name} of this run is a function, {saved!r}. Pass it again: {name}=...")
    if ":" in saved and not trust and not is_known_env(saved):
        raise ConfigError(
            f"the {name} of this run is {saved!r}, whose module would be imported. Pass it again with --{name} "
            f"{saved} (in Python, {name}={saved!r}), or allow the import with --trust (trust=True)."
        )
    return saved


def check_layer_sizes(about: Mapping[str, Any], hidden: Sequence[int], weights: Mapping[str, Any]) -> None:
    """Refuse layers far larger than all weights of a run together, before allocating them."""
    num_weights = sum(np.size(array) for array in weights.values())  # with several policies, those of all
    obs_size, action_size = (_flat_size(space_from_json(about["spaces"][side])) for side in ("observation", "action"))
    widths = [obs_size, *(check_int("a hidden layer's width", width) for width in hidden), action_size]
    too_wide = max(hidden, default=0) > max(num_weights, _LAYER_WIDTH_ALLOWED)
    too_large = max(math.prod(pair) for pair in pairwise(widths)) > max(num_weights, _LAYER_SIZE_ALLOWED)
    if too_wide or too_large:
        raise ConfigError(
            f"the run's config.json describes a network with layers of {', '.join(map(str, widths))}, but it has only "
            f"{num_weights:,} weights in all. Repair it."
        )


def _flat_size(space: spaces.Space) -> int:
    """Return the size of a space's flat vector. Images count as 0: convolutions reduce them to few numbers."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(map(_flat_size, parts))
    return 0 if is_image(space) else int(spaces.flatdim(space))


def check_weights_fit(agent: Agent, weights: Weights, path: Path) -> None:
    """Refuse weights whose names or shapes are not those of the agent."""
    expected = agent.weights()
    problems = [f"{name} is missing" for name in expected if name not in weights]
    problems += [f"the network has no {name}" for name in weights if name not in expected]
    problems += [
        f"{name} has shape {np.shape(weights[name])}, not {value.shape}"
        for name, value in expected.items()
        if name in weights and np.shape(weights[name]) != value.shape
    ]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ConfigError(
            f"the weights in {path} do not fit the network: {'; '.join(problems[:3])}{more}. Pass the network "
            "that was trained."
        )
