"""Runs of every algorithm: the same bytes wherever they run, from checkpoints too, even after a kill."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from raceway.training.train import resume, train
from tests.catalogue import killed_runs
from tests.catalogue.small_settings import (
    NAMES,
    RECURRENT,
    SYNCHRONOUS,
    WITH_PLACED_LEARNER,
    progress,
    small_settings,
)
from tests.conftest import GENEROUS
from tests.training.saved_runs import assert_same_state, assert_state_restored

ITERATIONS = 6
"""Of a whole run: enough for replay to begin."""


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str, iterations: int = ITERATIONS, **settings: Any) -> dict[str, Any]:
    """Train with the smallest settings, and return the summary."""
    summary: dict[str, Any] = train(
        name, iterations=iterations, progress=False, **small_settings(name, **settings)
    ).summary
    return summary


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    first, second, other = (run(name, seed=seed) for seed in (1, 1, 2))
    assert first["iterations"] == ITERATIONS
    assert progress(first) > 0
    assert first["weights_sha256"] == second["weights_sha256"] != other["weights_sha256"]


@cache
def inline_hash(name: str) -> str:
    """Return the hash of the state after a run in this process."""
    return run(name)["state_sha256"]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_the_bytes_are_the_same_in_other_processes(name: str, workers: int) -> None:
    assert run(name, engine="process", num_workers=workers)["state_sha256"] == inline_hash(name)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_the_bytes_are_the_same_on_ray(name: str, ray_session: None) -> None:
    assert run(name, engine="ray", num_workers=1)["state_sha256"] == inline_hash(name)


@pytest.mark.parametrize("name", WITH_PLACED_LEARNER)
def test_the_learner_gives_the_same_bytes_wherever_it_runs(name: str) -> None:
    """With target networks, and a learning rate and knobs that change."""
    schedule = {"lr_end": 0.0, "total_timesteps": 1000}
    places: list[dict[str, Any]] = [{"learner_on": place} for place in ("driver", "thread", "actor")]
    places.append({"learner_on": "actor", "engine": "process", "num_workers": 1})
    hashes = [run(name, 12, **schedule, **place)["weights_sha256"] for place in places]
    assert len(set(hashes)) == 1, hashes


# Resuming.


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_state_is_the_saved_one(name: str) -> None:
    run(name, run_dir="run")
    assert_state_restored("run", "inline")


@pytest.mark.parametrize("name", [name for name in RECURRENT if name in SYNCHRONOUS])
def test_a_recurrent_run_is_resumed_exactly(name: str) -> None:
    run(name, network="lstm", run_dir="whole")
    run(name, 3, network="lstm", run_dir="parts")
    resume("parts", iterations=ITERATIONS, progress=False)
    assert_same_state("whole", "parts")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of every algorithm that was killed in its third iteration."""
    path = tmp_path_factory.mktemp("killed")
    runs = {name: small_settings(name, run_dir=str(path / name), save_every=1) for name in NAMES}
    program = [sys.executable, killed_runs.__file__, json.dumps(runs)]
    outcome = subprocess.run(program, cwd=path, capture_output=True, text=True, timeout=10 * GENEROUS, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_is_resumed(name: str, killed: Path) -> None:
    """A synchronous algorithm ends in the same state as an uninterrupted run."""
    assert not (killed / name / "summary.json").exists()
    resumed = resume(killed / name, iterations=ITERATIONS, progress=False).summary
    assert resumed["iterations"] == ITERATIONS
    assert 0 < resumed["resumed_at"] < progress(resumed)
    if name in SYNCHRONOUS:
        run(name, run_dir="whole")
        assert_same_state("whole", str(killed / name))
