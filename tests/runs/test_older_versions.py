"""Runs that an older version made, kept in tests/data, still load, evaluate, resume, plot and compare."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import raceway
from raceway.checkpoints.store import Checkpoints
from raceway.cli import main

SCHEMA_1 = Path(__file__).parents[1] / "data" / "checkpoint_schema_1"
TIMESTEPS = 512
"""Environment steps after which the older version had the weights in `<algorithm>-resumed.npz`."""


@pytest.fixture(params=["ppo", "dqn", "apex"])
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a run with checkpoints of schema 1, as written before the records were named by module and class."""
    path = tmp_path / request.param
    shutil.copytree(SCHEMA_1 / request.param, path)
    manifest = json.loads(next(path.glob("checkpoints/*/manifest.json")).read_text())
    assert manifest["body"]["schema"] == 1
    return path


def test_an_old_run_resumes_as_the_older_version_would_have(old_run: Path) -> None:
    result = raceway.resume(old_run, total_timesteps=TIMESTEPS)
    assert result.summary["timesteps"] >= TIMESTEPS
    expected = np.load(SCHEMA_1 / f"{old_run.name}-resumed.npz")
    weights = result.policy.weights()
    assert weights.keys() == set(expected)
    for name, array in weights.items():  # another processor may round the last bits in another way
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_resumed_old_run_is_saved_with_the_new_schema(old_run: Path) -> None:
    raceway.resume(old_run, total_timesteps=TIMESTEPS)
    newest = Checkpoints(old_run / "checkpoints").all()[-1]
    assert newest.manifest["schema"] == 2
    text = (newest.path / "state.json").read_text()
    assert '"of": "Counter"' not in text
    assert '"gamma"' not in text


def test_an_old_run_is_loaded_and_evaluated(old_run: Path) -> None:
    policy = raceway.load(old_run)
    assert len(policy.evaluate(2).returns) == 2


def test_old_runs_are_plotted_compared_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ppo", "dqn", "apex"):
        shutil.copytree(SCHEMA_1 / name, tmp_path / "runs" / name)
    assert main(["plot", str(tmp_path / "runs"), "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "compare.png")]) == 0
    assert main(["list", "--runs", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("ppo", "dqn", "apex"))
