"""The smallest settings of a run of each algorithm, and what tests over the whole catalogue ask of an algorithm."""

import dataclasses
from typing import Any

from raceway.algorithms import algorithm_names, find_algorithm
from raceway.algorithms.sources import DatasetSource
from raceway.training.train import Training

NAMES = algorithm_names()
SMALL: dict[str, Any] = {
    "seed": 1, "engine": "inline", "metrics_interval": 0.0, "save_seconds": 0,
    "num_envs": 4, "num_shards": 2, "fragment_steps": 8, "batch_steps": 32, "episodes_per_iter": 4,
    "num_minibatches": 2, "num_epochs": 2, "hidden": (8,), "critic_hidden": (8,),
    "learning_starts": 64, "batch_size": 16, "buffer_size": 200,
    "target_every": 3, "actor_every": 2, "steps_per_update": 8.0, "n_step": 2, "epsilon_steps": 200,
    "learner_threads": 1, "total_updates": 10_000, "num_directions": 4, "num_actions": 2,
}  # fmt: skip
"""Settings, as far as an algorithm has them. Replay, targets and several shards are used within a few iterations."""
OWN: dict[str, dict[str, Any]] = {"r2d2": {"sequence_steps": 12, "burn_in": 4}}
"""Settings that others refuse, by algorithm."""
_FITTED = {"hidden", "max_grad_norm", "learner_threads"}
UNUSED = {
    "crossq": {"target_every"}, "linucb": _FITTED, "lints": _FITTED, "es": {"learner_threads"},
    "ars": {"learner_threads"},
}  # fmt: skip
"""Settings that an algorithm has from its family, and that have no effect."""
datasets: dict[str, str] = {}
"""Datasets that tests make before they run, of `discrete` and of `box` actions."""


def small_settings(name: str, **settings: Any) -> dict[str, Any]:
    """Return the smallest settings of an algorithm, as arguments of `train`; `settings` come first.

    Its environment is its own default one, with short episodes, so that some of them are truncated; or that of the
    dataset. Settings that an algorithm does not have are left out.
    """
    algorithm = find_algorithm(name)
    small: dict[str, Any] = {**SMALL, **OWN.get(name, {}), "env": algorithm.config.env}
    if algorithm.source is DatasetSource:
        small["dataset"] = datasets.get("discrete" if "discrete" in algorithm.actions else "box")
    elif not algorithm.needs_tasks:
        small["env_kwargs"] = {"max_episode_steps": 12}
    used = setting_names(name) - UNUSED.get(name, set())
    return {setting: value for setting, value in {**small, **settings}.items() if setting in used}


def setting_names(name: str) -> set[str]:
    """Return the names of an algorithm's settings."""
    return {field.name for field in dataclasses.fields(find_algorithm(name).config)}


def has_rollouts(name: str) -> bool:
    """Whether an algorithm learns from rollouts, which the policies of several agents can share."""
    return find_algorithm(name).source.joint


def acts(name: str) -> bool:
    """Whether the workers of an algorithm act, so that they are sent weights."""
    return find_algorithm(name).source.acts


def progress(summary: dict[str, Any]) -> int:
    """Return what a run counts: environment steps or, if it collects none, updates."""
    steps: int = summary["timesteps"] if summary["updates"] is None else summary["updates"]
    return steps


def plan_text(name: str, **settings: Any) -> str:
    """Return the plan of an algorithm as text. No engine is started."""
    algorithm = find_algorithm(name)
    with Training(algorithm, algorithm.settings(**small_settings(name, **settings))).open_flow(run=False) as flow:
        text: str = flow.explain()
    return text


SYNCHRONOUS = [name for name in NAMES if "async" not in plan_text(name)]
"""Algorithms whose results do not depend on where and when anything runs."""
RECURRENT = [name for name in NAMES if find_algorithm(name).recurrent]
WITH_PLACED_LEARNER = [name for name in SYNCHRONOUS if "learner_on" in setting_names(name)]
