"""`raceway resume` of runs from elsewhere, and of runs whose files have changed."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from raceway.checkpoints.store import Checkpoints
from raceway.cli import main
from raceway.errors import CheckpointError, ConfigError
from raceway.runs.resume import prepare_resume
from raceway.training.train import resume, train
from tests.example_agents import example_actor_critic
from tests.test_loaded_policy import change_config


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    settings: dict[str, Any] = {"num_envs": 4, "num_shards": 2, "hidden": (8,), "engine": "inline", "iterations": 2}
    train("a2c", env="cartpole", run_dir=str(path), **settings)
    return path


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def cart() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def test_a_function_as_environment_is_passed_to_every_resume(run: Path) -> None:
    assert resume(run, env=cart, iterations=3).summary["env"] == "cart"
    with pytest.raises(ConfigError, match=r"the env of this run is a function, 'cart'. Pass it again: env=..."):
        resume(run, iterations=4)
    assert resume(run, env=cart, iterations=4).summary["iterations"] == 4
    assert resume(run, env="cartpole", iterations=5).summary["iterations"] == 5


def test_a_cluster_is_not_connected_to_without_trust(run: Path) -> None:
    change_config(run, "config.engine", "ray")
    change_config(run, "config.address", "ray://elsewhere:10001")
    with pytest.raises(ConfigError, match=r"cluster at 'ray://elsewhere:10001'. .*--address.*--trust \(trust=True\)"):
        prepare_resume(run, None, {})
    assert prepare_resume(run, None, {"address": "ray://mine:1"})[1].address == "ray://mine:1"
    assert prepare_resume(run, None, {}, trust=True)[1].address == "ray://elsewhere:10001"
    assert prepare_resume(run, None, {"engine": "inline"})[1].address is None


@pytest.mark.parametrize("value", [None, 2.5, "x", [1], {}])
@pytest.mark.parametrize(
    "where",
    ["schema", "metrics_schema", "algorithm", "config", "config.env", "config.network", "config.hidden", "config.lr",
     "config.seed", "config.iterations", "config.num_envs", "config.env_kwargs", "config.engine", "config.vector",
     "config.device", "env.name", "importable", "importable.env_kwargs", "spaces", "spaces.observation"],
)  # fmt: skip
def test_an_invalid_config_is_an_error_without_a_traceback(run: Path, where: str, value: Any) -> None:
    """Some changes have no effect, and the run is resumed."""
    change_config(run, where, value)
    assert main(["resume", str(run), "--iterations", "2"]) in (0, 1)


@pytest.mark.parametrize("hidden", [[10**9], [10**5, 10**5]])
def test_a_network_too_large_for_memory_is_refused(run: Path, hidden: list[int]) -> None:
    change_config(run, "config.hidden", hidden)
    with pytest.raises(ConfigError, match=r"describes a network with layers of 4, .*weights in all"):
        resume(run)


def test_weights_must_fit_the_network(run: Path) -> None:
    _, _, resume_point = prepare_resume(run, None, {})
    resume_point.check_weights_fit(example_actor_critic(*spaces_of(cart()), hidden=(8,)))
    with pytest.raises(ConfigError, match=r"do not fit the network: .*has shape \(8, 4\), not \(7, 4\)"):
        resume_point.check_weights_fit(example_actor_critic(*spaces_of(cart()), hidden=(7,)))


def spaces_of(env: gymnasium.Env) -> Any:
    return env.observation_space, env.action_space


def test_a_checkpoint_without_its_iteration_is_refused(run: Path) -> None:
    path = Checkpoints(run / "checkpoints").find().path / "manifest.json"
    body = json.loads(path.read_text())["body"]
    del body["about"]["iterations"]
    sha256 = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"body": body, "sha256": sha256}))
    with pytest.raises(CheckpointError, match="cannot resume from this checkpoint: iterations is missing"):
        resume(run)


def test_a_torn_line_of_metrics_is_skipped(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(f"{lines[0][:40]}{lines[0]}\n{lines[1]}\n" + "\0" * 50 + "\n")
    assert [row["time/iterations"] for row in resume(run, iterations=3).metrics] == [2, 3]


def test_a_run_from_before_checkpoints_is_refused(run: Path) -> None:
    about = json.loads((run / "config.json").read_text())
    old = {"schema": 1} | {name: about[name] for name in ("algorithm", "config", "started")}
    (run / "config.json").write_text(json.dumps(old))
    with pytest.raises(ConfigError, match="was made by a version without checkpoints"):
        resume(run)
    assert main(["list", "--runs", str(run)]) == 0
