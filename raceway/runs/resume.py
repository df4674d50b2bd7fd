"""Going on with a run: what it was asked to do, which of that may change, and where it was."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.agents import Policy, Weights
from raceway.agents.networks import is_image
from raceway.algorithms import Algorithm, find_algorithm
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.checks import check_int, unknown_name
from raceway.envs.names import find
from raceway.errors import CheckpointError, ConfigError
from raceway.rl.space_json import space_from_json
from raceway.runs.directory import as_json, read_config
from raceway.runs.reader import is_running
from raceway.runs.schema import has_policy
from raceway.schema import schema_mismatch

MAY_CHANGE = (
    "engine", "address", "num_workers", "iterations", "total_timesteps", "stop_return", "stop_seconds", "save_every",
    "save_seconds", "keep", "eval_every", "eval_episodes", "item_deadline", "max_env_failures", "max_restarts",
)  # fmt: skip
"""Settings of a run that may be others when it goes on: how long, where, and what is kept."""
_STATE = {"learner": {"policy": dict}, "evaluations": dict, "flow": dict}
_LARGE, _WIDE = 1 << 26, 1 << 16
"""Numbers of a layer, and its width, that are borne even if a run has fewer weights: its network may have no such."""


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

    def check_fit(self, policy: Policy) -> None:
        """Refuse to go on with a network, or an environment, that is not the one that was trained."""
        check_fit(policy, self.state["learner"]["policy"], self.checkpoint.path)


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
    if not has_policy(about):
        raise ConfigError(f"the run in {run} was made before there were checkpoints. Train it anew.")
    cfg = _config(found, about, settings, trust=trust)
    if list(cfg.hidden or ()) != about["policy"]["hidden"]:
        raise ConfigError(
            f"{run}/config.json is corrupt: by its settings hidden layers have the widths {cfg.hidden}, and by its "
            f"policy {about['policy']['hidden']}. Mend it."
        )
    checkpoints = Checkpoints(Path(run) / "checkpoints")
    there = [one.path for one in checkpoints.all()]
    if not there and is_running(run):
        raise ConfigError(f"the run in {run} is being trained, and has no checkpoint yet. Wait for it to end.")
    start = Start(*checkpoints.newest_good(), there)
    _check_state(start)
    check_run(start.checkpoint, about)
    check_size(about, cfg.hidden or (), start.state["learner"]["policy"])
    return found, dataclasses.replace(cfg, run_dir=str(run)), start


def _check_state(start: Start) -> None:
    """Refuse a checkpoint that lacks what every one has."""
    problem = schema_mismatch(start.checkpoint.about, {"iterations": int}) or schema_mismatch(start.state, _STATE)
    if problem:
        raise CheckpointError(start.checkpoint.path, f"it cannot be gone on from: {problem}")


def check_run(checkpoint: Checkpoint, about: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that is of another run than the one that this is known of."""
    told, path = checkpoint.about, checkpoint.path
    same = {"algorithm": about["algorithm"], "seed": about["config"]["seed"]}
    if about["importable"]["env"]:
        same["env"] = about["env"]["name"]
    for name, wanted in same.items():
        if told.get(name) != wanted:
            raise CheckpointError(path, f"it is of another run: its {name} is {told.get(name)!r}, not {wanted!r}")


def _config(algorithm: Algorithm, about: Mapping[str, Any], settings: Mapping[str, Any], *, trust: bool) -> Any:
    """Return the settings of a run, with those that are to change."""
    names, hints = [one.name for one in dataclasses.fields(algorithm.config)], typing.get_type_hints(algorithm.config)
    saved = {name: tuple(value) if isinstance(value, list) else value for name, value in about["config"].items()}
    for name in settings:
        if name not in names:
            raise unknown_name(f"setting of {algorithm.name}", name, names)
    for name, value in saved.items():
        if name not in names:
            raise ConfigError(f"the run has a setting {name!r}, which this version of {algorithm.name} does not know")
        if not _fits(value, hints[name]):
            raise ConfigError(f"the run's config.json is corrupt: its setting {name} is {value!r}. Mend it.")
    for name, value in settings.items():
        if name not in (*MAY_CHANGE, "env", "network") and as_json(value) != as_json(saved.get(name)):
            raise _fixed(name, saved.get(name), value)
    if not about["importable"]["env_kwargs"] and "env_kwargs" not in settings:
        raise ConfigError(f"env_kwargs of this run hold what a file cannot: {saved['env_kwargs']}. Give them again.")
    made = {**saved, **settings}
    for name in ("env", "network"):
        made[name] = _named(name, about, settings.get(name), trust=trust)
    if settings.get("engine", "ray") != "ray" and "address" not in settings:
        made["address"] = None
    if made.get("address") is not None and "address" not in settings and not trust:
        raise ConfigError(
            f"this run was trained on the Ray cluster at {made['address']!r}. Give it again with --address "
            f"{made['address']}, or let the run connect to what it names with --trust (trust=True)."
        )
    return algorithm.config(**made)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a setting that was read from a file is of the type that it should have."""
    if isinstance(hint, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(part, typing.get_args(hint)[0]) for part in value)
    return kind is Any or type(value) is kind or (kind is float and type(value) is int)


def _named(name: str, about: Mapping[str, Any], given: Any, *, trust: bool) -> Any:
    """Return the environment or network that a run goes on with."""
    saved = about["config"][name]
    if given is None:
        return trusted(name, saved, importable=about["importable"][name], trust=trust)
    if isinstance(given, str) and about["importable"][name] and (find(given) if name == "env" else given) != saved:
        raise _fixed(name, saved, given)
    return given


def _fixed(name: str, saved: Any, given: Any) -> ConfigError:
    return ConfigError(
        f"{name} may not change when a run is resumed: it is {saved!r}, not {given!r}. These may: "
        f"{', '.join(MAY_CHANGE)}."
    )


def trusted(name: str, saved: str, *, importable: bool, trust: bool) -> str:
    """Return the environment or network that a run names. What has to be imported is given again, or trusted."""
    if not importable:
        raise ConfigError(f"the {name} of this run is a function, {saved!r}. Give it again: {name}=...")
    if ":" in saved and not trust:
        raise ConfigError(
            f"the {name} of this run is {saved!r}: a module that would be imported. Give it again with --{name} "
            f"{saved} (in Python, {name}={saved!r}), or let the run import what it names with --trust (trust=True)."
        )
    return saved


def check_size(about: Mapping[str, Any], hidden: Sequence[int], weights: Mapping[str, Any]) -> None:
    """Refuse layers that are far larger than all weights of a run, before there is an attempt to make them."""
    num = sum(np.size(array) for array in weights.values())
    seen, done = (_inputs(space_from_json(about["spaces"][side])) for side in ("observation", "action"))
    sizes = [seen, *(check_int("a width of hidden layers", width) for width in hidden), done]
    if max(hidden, default=0) > max(num, _WIDE) or max(math.prod(pair) for pair in pairwise(sizes)) > max(num, _LARGE):
        raise ConfigError(
            f"the run's config.json describes a network with layers of {', '.join(map(str, sizes))}, and it has "
            f"{num:,} weights in all. Mend it."
        )


def _inputs(space: spaces.Space) -> int:
    """Return how many numbers a network sees of a space. Of pictures, convolutions make few."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(map(_inputs, parts))
    return 0 if is_image(space) else int(spaces.flatdim(space))


def check_fit(policy: Policy, weights: Weights, path: Path) -> None:
    """Refuse weights that are not of this network."""
    own = policy.weights()
    problems = [f"{name} is missing" for name in own if name not in weights]
    problems += [f"there is no {name} in it" for name in weights if name not in own]
    problems += [
        f"{name} has shape {np.shape(weights[name])}, not {value.shape}"
        for name, value in own.items()
        if name in weights and np.shape(weights[name]) != value.shape
    ]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ConfigError(
            f"the weights in {path} do not fit the network: {'; '.join(problems[:3])}{more}. Give the network that was "
            "trained."
        )
