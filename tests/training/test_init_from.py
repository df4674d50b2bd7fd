"""`--init-from RUN`: a training that starts from the weights of another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.cli import main
from raceway.errors import ConfigError
from raceway.loaded_policy import load
from raceway.runs.config_file import read_config
from raceway.training.train import resume, train
from tests.training.multi_agent_runs import SHORT_SPREAD, TWO_PPO

SETTINGS: dict[str, Any] = {
    "env": "cartpole", "engine": "inline", "num_envs": 2, "num_shards": 1, "progress": False, "hidden": (8,),
}  # fmt: skip
FRAGMENTS: dict[str, Any] = {**SETTINGS, "fragment_steps": 8}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "run"
    train("a2c", iterations=2, run_dir=path, seed=7, **FRAGMENTS)
    return path


def weights(run: Path, which: Any) -> dict[str, np.ndarray]:
    return load(run, which).weights()


def test_all_parts_of_the_same_algorithm_are_loaded(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    train("a2c", iterations=1, init_from=source, run_dir=path, **FRAGMENTS)
    for name, array in weights(path, 0).items():
        np.testing.assert_array_equal(array, weights(source, "best")[name])
    about = read_config(path)
    assert about["config"]["init_from"] == str(source)
    assert about["initial_weights"]["parts"] == ["actor", "critic", "rewards"]
    assert about["initial_weights"]["checkpoint"].startswith(str(source))


def test_atoms_of_another_range_are_refused(tmp_path: Path) -> None:
    """The weights would mean other returns, and loading those atoms would undo the setting."""
    settings: dict[str, Any] = {**FRAGMENTS, "v_min": 0.0, "num_atoms": 5}
    train("c51", iterations=1, run_dir=tmp_path / "run", v_max=50.0, **settings)
    options: dict[str, Any] = {**settings, "iterations": 1, "init_from": tmp_path / "run"}
    with pytest.raises(ConfigError, match=r"support has other values there than the settings here give"):
        train("c51", run_dir=tmp_path / "other", v_max=100.0, **options)
    train("c51", run_dir=tmp_path / "same", v_max=50.0, **options)


def test_resuming_does_not_load_them_again(source: Path, tmp_path: Path) -> None:
    straight = train("a2c", iterations=3, init_from=source, run_dir=tmp_path / "straight", **FRAGMENTS)
    path = tmp_path / "run"
    train("a2c", iterations=1, init_from=source, run_dir=path, **FRAGMENTS)
    resumed = resume(path, iterations=3, progress=False)
    assert resumed.summary["weights_sha256"] == straight.summary["weights_sha256"]
    with pytest.raises(ConfigError, match="init_from cannot change when a run is resumed"):
        resume(path, init_from="elsewhere")


def test_parts_that_both_have_are_loaded(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The policy of an actor-critic has the shape of REINFORCE's, which has no critic."""
    path = tmp_path / "run"
    options = ["--local", "--iterations", "1", "--num-envs", "2", "--hidden", "8", "--episodes-per-iter", "2"]
    assert main(["train", "reinforce", "--init-from", str(source), *options, "--run-dir", str(path), "--json"]) == 0
    capsys.readouterr()
    about = json.loads((path / "config.json").read_text())
    assert about["initial_weights"]["parts"] == ["actor"]
    for name, array in weights(path, 0).items():
        np.testing.assert_array_equal(array, weights(source, "best")[name])


def test_policies_of_several_agents(source: Path) -> None:
    def env() -> Any:
        from mpe2 import simple_v3

        return simple_v3.parallel_env()

    with pytest.raises(ConfigError, match=r"actor\.network\.3\.weight has shape \(2, 8\) there and \(5, 8\) here"):
        train("a2c", env=env, policies="shared", init_from=source, hidden=(8,), progress=False)


def test_policies_start_from_those_of_the_same_name(tmp_path: Path) -> None:
    several, again = tmp_path / "several", tmp_path / "again"
    train("ppo", iterations=2, run_dir=several, policies=TWO_PPO, seed=7, **SHORT_SPREAD)
    train("ppo", iterations=1, run_dir=again, policies=TWO_PPO, init_from=several, **SHORT_SPREAD)
    assert load(again, 0).sha256() == load(several).sha256()
    loaded = read_config(again)["initial_weights"]
    assert {name: entry["policy"] for name, entry in loaded.items()} == {"pair": "pair", "single": "single"}
    with pytest.raises(ConfigError, match="that run has the policies pair, single, and none is named 'agent'"):
        train("ppo", init_from=several, **SHORT_SPREAD)
    with pytest.raises(ConfigError, match="and this run has one agent"):
        train("a2c", init_from=several, **FRAGMENTS)


def test_policies_start_from_the_only_one_of_a_run(tmp_path: Path) -> None:
    shared, again = tmp_path / "shared", tmp_path / "again"
    train("ppo", iterations=2, run_dir=shared, seed=7, **SHORT_SPREAD)
    train("ppo", iterations=1, run_dir=again, policies=TWO_PPO, init_from=shared, **SHORT_SPREAD)
    for name in ("pair", "single"):
        assert load(again, 0)[name].sha256() == load(shared)["agent"].sha256()


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("a2c", {"hidden": (9,)}, r"actor\.network\.1\.weight has shape \(8, 4\) there and \(9, 4\) here"),
        ("a2c", {"hidden": (8, 8)}, r"it has no actor\.network\.5\.weight"),
        ("a2c", {"normalise_obs": True}, r"it has no actor\.network\.0\.normaliser\.mean"),
        ("a2c", {"init_from": "nowhere"}, "there is no directory nowhere"),
        ("a2c", {"init_from": 3}, "init_from must be"),
    ],
)
def test_what_does_not_fit(
    source: Path, tmp_path: Path, algorithm: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(algorithm, **{**FRAGMENTS, "init_from": source, "run_dir": tmp_path / "run", **settings})
    assert not (tmp_path / "run").exists()
