"""What settings are for: which may change on resume, and which do not affect results."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest

from raceway.algorithms import AlgorithmConfig, algorithm_names, find_algorithm
from raceway.algorithms.sources import DatasetSource
from raceway.settings.field_types import PositiveInt
from raceway.settings.groups import (
    EXECUTION,
    GROUPS,
    RESULTS,
    Role,
    changeable_on_resume,
    setting_roles,
    settings_without_effect,
)

CHANGEABLE = {
    "engine", "address", "num_workers", "iterations", "total_timesteps", "stop_return", "stop_seconds",
    "stop_eval_return", "save_every", "save_seconds", "keep", "eval_every", "eval_episodes", "metrics_interval",
    "item_deadline", "max_env_failures", "max_restarts", "info_keys",
}  # fmt: skip
LENGTHS = {"iterations", "total_timesteps", "total_updates", "stop_return", "stop_seconds", "stop_eval_return"}
ROLLOUTS = {"total_timesteps", "stop_return", "max_env_failures", "info_keys"}
"""Settings that only algorithms with rollouts have."""
DATASETS = {"total_updates", "dataset"}
"""Settings that only algorithms with datasets have."""
OWN = {"ddppo": {"check_every"}}
"""Settings that only this algorithm has."""


@pytest.mark.parametrize("name", algorithm_names())
def test_what_may_change_on_resume(name: str) -> None:
    algorithm = find_algorithm(name)
    of_dataset = algorithm.source is DatasetSource
    expected = ((CHANGEABLE - ROLLOUTS) | DATASETS if of_dataset else CHANGEABLE) | OWN.get(name, set())
    assert set(changeable_on_resume(algorithm.config)) == expected
    assert settings_without_effect(algorithm.config) == expected - LENGTHS - {"dataset"} | {"run_dir"}


def test_the_groups_are_those_of_every_algorithm() -> None:
    assert settings_without_effect(*GROUPS) == settings_without_effect(AlgorithmConfig)


def test_the_groups_need_no_torch() -> None:
    program = "import sys, raceway.runs.comparison; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@dataclass(frozen=True, kw_only=True)
class Logging:
    role: ClassVar[Role] = EXECUTION

    log_every: PositiveInt = 10
    log_seed: Annotated[int, RESULTS] = 0


@dataclass(frozen=True, kw_only=True)
class Elsewhere(AlgorithmConfig, Logging):
    """A config in another package, with a group and a role of its own."""

    num_shards: int | None = 4
    keep: int = 5
    patience: Annotated[PositiveInt, EXECUTION] = 3
    width: PositiveInt = 3


def test_a_config_elsewhere_says_what_its_settings_are_for() -> None:
    assert set(changeable_on_resume(Elsewhere)) == CHANGEABLE | {"log_every", "patience"}
    assert setting_roles(Elsewhere)["num_shards"] == RESULTS
