"""An algorithm outside of the package: trained by module:name, and rebuilt exactly by load, eval and resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raceway.agents.distributions import SquashedGaussian
from raceway.algorithms import algorithm, find_algorithm, registry
from raceway.cli import main
from raceway.errors import ConfigError
from raceway.loaded_policy import load
from raceway.runs.config_file import read_config
from raceway.training.train import resume, train
from tests.training.multi_agent_runs import SHORT_SPREAD

NAME = "tests.own_algorithm:squashed"
SETTINGS: dict[str, Any] = {"engine": "inline", "num_shards": 1, "progress": False, "metrics_interval": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "run"
    code = main(["train", NAME, "--local", "--iterations", "3", "--num-shards", "1", "--run-dir", str(path), "--json"])
    assert code == 0
    return path


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module of the algorithm be unknown, as in a new process."""
    monkeypatch.delitem(registry._registered, "squashed", raising=False)
    monkeypatch.delitem(sys.modules, "tests.own_algorithm", raising=False)


def test_the_run_names_the_module(run: Path) -> None:
    about = read_config(run)
    assert (about["algorithm"], about["algorithm_import"]) == ("squashed", NAME)


def test_a_distribution_is_rebuilt(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    for use in (load, resume):
        with pytest.raises(ConfigError, match=f"the algorithm of this run is '{NAME}', whose module would be imported"):
            use(run)
        assert "tests.own_algorithm" not in sys.modules
    policy = load(run, trust=True)
    assert type(policy.policy.distribution) is SquashedGaussian
    assert policy.sha256() == json.loads((run / "summary.json").read_text())["weights_sha256"]
    load(run)  # its module is imported now


def test_commands_take_the_module(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a new process, as a user has it."""
    command = [sys.executable, "-m", "raceway", "eval", str(run), "--episodes", "1", "--json"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert refused.returncode
    assert "Allow it with --trust" in refused.stderr
    allowed = subprocess.run([*command, "--trust"], capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(allowed.stdout)["algorithm"] == "squashed"
    assert main(["explain", "tests.own_algorithm:squashed_gradient"]) == 0  # by its plan function
    assert "TrainOneStep" in capsys.readouterr().out
    assert main(["train", NAME, "--print-config"]) == 0
    assert f'algorithm = "{NAME}"' in capsys.readouterr().out


def test_a_file_names_the_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'algorithm = "{NAME}"\nhidden = [3]\n')
    assert main(["explain", "--config", str(file)]) == 0
    assert "hidden 3" in capsys.readouterr().out


def test_a_stateful_loss_resumes_exactly(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    straight = train(NAME, iterations=5, run_dir=tmp_path / "straight", **SETTINGS).summary["weights_sha256"]
    assert main(["resume", str(run), "--iterations", "5", "--trust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["weights_sha256"] == straight


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.own_algorithm:squased", "unknown algorithm in tests.own_algorithm 'squased'.*Did you mean 'squashed'"),
        ("tests.own_algorthm:squashed", "there is no module 'tests.own_algorthm' here"),
        (":squashed", "must be module:name"),
        ("tests.own_algorithm:Config", "Register its plan function"),
    ],
)
def test_a_module_without_the_algorithm(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_algorithm(name)


def test_a_name_of_raceways_own_is_refused() -> None:
    own = find_algorithm(NAME)
    with pytest.raises(ConfigError, match="'ppo' is an algorithm of Raceway"):
        algorithm("ppo", own.config)(own.plan)
    assert find_algorithm("ppo").plan is not own.plan


def test_a_run_cannot_name_a_module_as_its_algorithm(run: Path, tmp_path: Path) -> None:
    about = json.loads((run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**about, "algorithm": NAME}))
    with pytest.raises(ConfigError, match=r"config\.json is corrupt: its algorithm .* is no name"):
        read_config(tmp_path)


def test_a_policy_of_several_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use of the run finds the algorithm of the policy by its module, and none imports it unasked."""
    path = tmp_path / "run"
    policies = {"own": {"agents": "agent_*", "algorithm": NAME, "hidden": (4,)}}
    settings = {**SHORT_SPREAD, "env_kwargs": {"max_cycles": 10, "continuous_actions": True}}
    own = ("hidden", "num_epochs", "num_minibatches", "lr_end")
    shared = {name: value for name, value in settings.items() if name not in own}
    trained = train("ppo", iterations=1, run_dir=str(path), policies=policies, **shared)
    forget(monkeypatch)
    for use in (load, resume):
        with pytest.raises(ConfigError, match=f"'{NAME}', whose module would be imported"):
            use(path)
    with pytest.raises(ConfigError, match=f"an algorithm of another module, '{NAME}', which is not used"):
        train(config=path, progress=False)
    assert "tests.own_algorithm" not in sys.modules
    policy = load(path, trust=True)
    assert policy.policies["own"].sha256() == trained.summary["policies"]["own"]["weights_sha256"]
    assert resume(path, iterations=2, progress=False).summary["iterations"] == 2
    again = train(config=path, iterations=1, run_dir=str(tmp_path / "again"), progress=False)
    assert again.summary["weights_sha256"] == trained.summary["weights_sha256"]
    about = json.loads((path / "config.json").read_text())
    about["policies"]["own"]["algorithm"] = NAME
    (path / "config.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match=r"config\.json is corrupt: its algorithm .* is no name"):
        read_config(path)


def test_an_entry_point_registers_an_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip installs it: a directory on the path with the metadata of a package."""
    metadata = tmp_path / "own_algorithms-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-algorithms\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[raceway.algorithms]\nsquashed = tests.own_algorithm\n")
    monkeypatch.syspath_prepend(tmp_path)
    forget(monkeypatch)
    found = find_algorithm("squashed")
    assert found.import_name is None  # any process finds it by its name
    assert "squashed" in registry.algorithm_names()
