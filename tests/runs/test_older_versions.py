"""Runs that older versions made, kept in tests/data, still load, evaluate, resume, plot and compare.

Schema 1: as written before the records were named by module and class. Schema 2: before agents had named parts; `dqn`
has a target network and an ε among its weights, `a3c` gradients in flight, `impala` a remote learner, and `ppo` has
normalisers.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import raceway
from raceway.checkpoints.manifest import SCHEMA
from raceway.checkpoints.migrations import migrate_weights
from raceway.checkpoints.store import Checkpoints
from raceway.cli import main

DATA = Path(__file__).parents[1] / "data"
RUNS = [(1, "ppo"), (1, "dqn"), (1, "apex"), (2, "ppo"), (2, "dqn"), (2, "a3c"), (2, "impala")]
TIMESTEPS = 512
"""Environment steps after which the older version had the weights in `<algorithm>-resumed.npz`."""


@pytest.fixture(params=RUNS, ids=lambda run: f"schema {run[0]} {run[1]}")
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a run with checkpoints of an older schema."""
    schema, name = request.param
    path = tmp_path / f"checkpoint_schema_{schema}" / name
    shutil.copytree(DATA / path.relative_to(tmp_path), path)
    manifest = json.loads(next(path.glob("checkpoints/*/manifest.json")).read_text())
    assert manifest["body"]["schema"] == schema
    return path


def test_an_old_run_resumes_as_the_older_version_would_have(old_run: Path) -> None:
    result = raceway.resume(old_run, total_timesteps=TIMESTEPS)
    assert result.summary["timesteps"] >= TIMESTEPS
    with np.load(DATA / old_run.parent.name / f"{old_run.name}-resumed.npz") as saved:
        expected, knobs = migrate_weights(saved, schema=2)
    weights = result.policy.weights()
    assert weights.keys() == expected.keys()
    assert {"actor.network.1.weight", "actor.network.1.bias"} <= weights.keys()
    assert knobs.keys() == result.policy.explorer.knobs.keys()
    for name, value in knobs.items():
        np.testing.assert_allclose(np.broadcast_to(result.policy.explorer.knobs[name], value.shape), value, rtol=1e-6)
    # Another processor may round the last bits in another way. The learning rate of runs with replay followed the
    # transitions that were sampled, and follows environment steps now, so that it decays more slowly.
    tolerance = 2e-2 if old_run.name in ("dqn", "apex") else 1e-4
    for name, array in weights.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=tolerance, err_msg=name)


def test_a_resumed_old_run_is_saved_with_the_new_schema(old_run: Path) -> None:
    raceway.resume(old_run, total_timesteps=TIMESTEPS)
    newest = Checkpoints(old_run / "checkpoints").all()[-1]
    assert newest.manifest["schema"] == SCHEMA
    text = (newest.path / "state.json").read_text()
    assert '"of": "Counter"' not in text
    assert '"gamma"' not in text


def test_an_old_run_is_loaded_and_evaluated(old_run: Path) -> None:
    policy = raceway.load(old_run)
    if old_run.name in ("dqn", "apex"):
        epsilon = policy.explorer.knobs["epsilon"]
        assert ((epsilon > 0) & (epsilon < 1)).all(), "the ε of the checkpoint, and not the first"
    assert len(policy.evaluate(2).returns) == 2


def test_old_runs_are_plotted_compared_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ppo", "dqn", "apex"):
        shutil.copytree(DATA / "checkpoint_schema_1" / name, tmp_path / "runs" / name)
    assert main(["plot", str(tmp_path / "runs"), "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "compare.png")]) == 0
    assert main(["list", "--runs", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("ppo", "dqn", "apex"))
