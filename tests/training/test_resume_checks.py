"""Resuming: what is refused, what may change, and what is recorded."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import raceway
from raceway.errors import CheckpointError, ConfigError
from raceway.runs.directory import RunDirectory
from raceway.runs.metrics_file import read_metrics
from raceway.training.train import Training, resume, train
from tests.conftest import GENEROUS
from tests.training.saved_runs import (
    HANGING_ENV,
    FailsOnce,
    assert_same_state,
    command_options,
    last_checkpoint,
    settings_of,
    start_command,
)


@pytest.fixture(autouse=True)
def _in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_resuming_a_finished_run_does_nothing() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=3, **settings)
    before = last_checkpoint("run").sha256
    result = resume("run")
    assert result.summary["stopped_by"] == "iterations"
    assert last_checkpoint("run").sha256 == before == result.summary["state_sha256"]


def test_resume_auto_starts_or_resumes(caplog: pytest.LogCaptureFixture) -> None:
    algorithm, settings = settings_of("ppo cartpole")
    with pytest.raises(ConfigError, match="--resume auto resumes the run in --run-dir"):
        train(algorithm, resume="auto", **settings)
    settings_auto = {**settings, "engine": "inline", "run_dir": "run", "resume": "auto"}
    assert train(algorithm, iterations=2, **settings_auto).summary["resumed_at"] is None
    assert train(algorithm, iterations=5, **settings_auto).summary["resumed_at"] == 256
    train(algorithm, iterations=5, run_dir="whole", engine="inline", **settings)
    assert_same_state("whole", "run")
    with pytest.raises(ConfigError, match=r"trains ppo, not a2c"):
        train("a2c", env="cartpole", run_dir="run", resume="auto")


def test_a_setting_that_cannot_change_is_refused() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=1, **settings)
    message = (
        r"lr cannot change when a run is resumed: it is .*, not 0.5. These can: iterations, .*engine, .*save_every"
    )
    with pytest.raises(ConfigError, match=message):
        resume("run", lr=0.5)
    with pytest.raises(ConfigError, match=r"env cannot change .*it is 'CartPole-v1', not 'acrobot'"):
        resume("run", env="acrobot")
    with pytest.raises(ConfigError, match=r"unknown setting of ppo 'num_worker'. Did you mean 'num_workers'"):
        resume("run", num_worker=2)


def test_a_directory_without_a_run_is_refused() -> None:
    Path("empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty is not a run: it has no config.json"):
        resume("empty")
    with pytest.raises(ConfigError, match=r"there is no directory nowhere"):
        resume("nowhere")
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="many/one", engine="inline", iterations=1, **settings)
    with pytest.raises(ConfigError, match=r"many is not a run.*It contains the runs one"):
        resume("many")
    shutil.rmtree("many/one/checkpoints")
    with pytest.raises(CheckpointError, match="there is no checkpoint to resume from"):
        resume("many/one")


@pytest.mark.parametrize(
    ("other", "mismatch"),
    [
        ({"seed": 4}, "its seed is 3, not 4"),
        ({"algorithm": "a2c"}, "its algorithm is 'ppo', not 'a2c'"),
        ({"env": "acrobot"}, "its env is 'CartPole-v1', not 'Acrobot-v1'"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(other: dict[str, Any], mismatch: str) -> None:
    """Both by `resume` and by `load`."""
    settings = {"algorithm": "ppo", "env": "cartpole", "seed": 3, "num_envs": 4, "num_shards": 2, "engine": "inline"}
    train(run_dir="first", iterations=1, **settings)
    train(run_dir="second", iterations=1, **{**settings, **other})
    shutil.rmtree("second/checkpoints")
    shutil.copytree("first/checkpoints", "second/checkpoints")
    with pytest.raises(CheckpointError, match=f"it belongs to another run: {mismatch}"):
        resume("second")
    with pytest.raises(CheckpointError, match=f"it belongs to another run: {mismatch}"):
        raceway.load("second")


def test_a_running_run_without_checkpoint_is_refused() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=1, **settings)
    shutil.rmtree("run/checkpoints")
    locked = RunDirectory.reopen("run")
    with pytest.raises(ConfigError, match="is being trained, and has no checkpoint yet"):
        resume("run")
    locked.close()


def test_resume_auto_with_invalid_settings_changes_nothing() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=1, **settings)
    shutil.rmtree("run/checkpoints")
    before = Path("run/config.json").read_text()
    with pytest.raises(ConfigError):
        train("a2c", env="nonsense", run_dir="run", resume="auto")
    with pytest.raises(ConfigError, match="is ppo on CartPole-v1, not a2c on Acrobot-v1"):
        train("a2c", env="acrobot", run_dir="run", resume="auto", engine="inline", num_envs=4)
    assert Path("run/config.json").read_text() == before


def test_no_module_is_imported_without_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.py").write_text(
        "import gymnasium\nfrom pathlib import Path\nPath('imported').touch()\n"
        "gymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=20)\n"
    )
    monkeypatch.syspath_prepend(".")
    train("ppo", env="mine:Mine-v0", run_dir="run", engine="inline", iterations=1, num_envs=4, num_shards=1)
    del sys.modules["mine"], gymnasium.registry["Mine-v0"]
    Path("imported").unlink()
    with pytest.raises(ConfigError, match=r"env of this run is 'mine:Mine-v0', .*--env mine:Mine-v0.*--trust"):
        resume("run", iterations=2)
    assert not Path("imported").exists()
    assert resume("run", iterations=2, env="mine:Mine-v0").summary["iterations"] == 2
    assert resume("run", iterations=3, trust=True).summary["iterations"] == 3


def test_a_function_must_be_passed_again() -> None:
    def make_env() -> Any:
        return gymnasium.make("CartPole-v1", max_episode_steps=30)

    settings: dict[str, Any] = {"num_envs": 4, "num_shards": 2, "engine": "inline", "seed": 1}
    train("a2c", env=make_env, run_dir="run", iterations=3, **settings)
    train("a2c", env=make_env, run_dir="whole", iterations=6, **settings)
    with pytest.raises(ConfigError, match=r"the env of this run is a function, 'make_env'. Pass it again"):
        resume("run", iterations=6)
    resume("run", iterations=6, env=make_env)
    assert_same_state("whole", "run")


def test_a_run_directory_is_complete() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    result = train(algorithm, run_dir="run", engine="inline", iterations=2, **settings)
    about = json.loads(Path("run/config.json").read_text())
    assert about["spaces"]["action"] == {"type": "Discrete", "n": 2, "start": 0, **about["spaces"]["action"]}
    assert "policy" not in about, "the agent is rebuilt from the algorithm and its config"
    assert about["env"] == {"name": "CartPole-v1", "kwargs": {}, "vector": "auto"}
    assert Path("run/plan.svg").read_text().startswith("<svg")
    assert list(Path("run").glob("events.out.tfevents.*"))
    assert re.fullmatch(rf"process {os.getpid()} on .*\n", Path("run/lock").read_text())
    assert result.summary["state_sha256"] == last_checkpoint("run").sha256
    assert raceway.resume("run", iterations=3).summary["iterations"] == 3


def test_every_resume_is_recorded_with_its_changes() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=2, **settings)
    first = json.loads(Path("run/config.json").read_text())
    resume("run", iterations=3)
    resume("run", iterations=3, total_timesteps=100_000, engine="process", num_workers=1)
    about = json.loads(Path("run/config.json").read_text())
    assert {name: about[name] for name in ("started", "command", "versions")} == {
        name: first[name] for name in ("started", "command", "versions")
    }
    assert [(entry["steps"], entry["changed"]) for entry in about["resumes"]] == [
        (256, {"iterations": 3}),
        (384, {"total_timesteps": 100_000, "engine": "process", "num_workers": 1}),
    ]
    assert about["config"] == {**first["config"], **about["resumes"][0]["changed"], **about["resumes"][1]["changed"]}


def test_a_failed_run_says_how_to_resume() -> None:
    text = HANGING_ENV.replace("Hanging", "Broken").replace("time.sleep(1000)", "raise RuntimeError('lost')")
    Path("broken.py").write_text(text)
    settings = {"env": "broken:Broken-v0", "num_envs": 2, "num_shards": 1, "run_dir": "run", "save_every": 1}
    with start_command("train", "a2c", *command_options(settings), "--local", "--max-env-failures", "0") as run:
        _, error = run.communicate(timeout=GENEROUS)
    assert run.returncode == 1
    assert "raised RuntimeError: lost" in error
    assert "Progress up to the last checkpoint is saved. Resume with: raceway resume run" in error
    assert last_checkpoint("run").about["iterations"] == 4


def test_resume_auto_starts_again_without_a_checkpoint() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    settings |= {"engine": "inline", "run_dir": "run", "resume": "auto", "iterations": 2}
    train(algorithm, **settings)
    shutil.rmtree("run/checkpoints")
    assert train(algorithm, **settings).summary["resumed_at"] is None
    assert last_checkpoint("run").about["iterations"] == 2
    assert len(read_metrics("run")) == 2
    shutil.rmtree("run/checkpoints")
    locked = RunDirectory.reopen("run")
    with pytest.raises(ConfigError, match=rf"is being trained by process {os.getpid()}"):
        train(algorithm, **settings)
    locked.close()


def test_an_environment_function_may_have_another_name() -> None:
    def make_env() -> Any:
        return gymnasium.make("CartPole-v1", max_episode_steps=30)

    settings: dict[str, Any] = {"num_envs": 4, "num_shards": 2, "engine": "inline", "seed": 1}
    train("a2c", env=make_env, run_dir="run", iterations=1, **settings)
    resume("run", iterations=2, env=lambda: make_env())
    assert resume("run", iterations=3, env=make_env).summary["iterations"] == 3


def test_settings_that_json_cannot_hold_must_be_passed_again() -> None:
    settings: dict[str, Any] = {"num_envs": 2, "num_shards": 1, "engine": "inline", "hidden": [8, 8]}
    kwargs = {"size": (3, 4)}
    train("a2c", env=FailsOnce, env_kwargs=kwargs, run_dir="run", iterations=1, **settings)
    with pytest.raises(ConfigError, match=r"env_kwargs of this run cannot be read from its file: .*Pass them again"):
        resume("run", env=FailsOnce, iterations=2)
    more = {"run_dir": "run", "resume": "auto", **settings}
    assert train("a2c", env=FailsOnce, env_kwargs=kwargs, iterations=3, **more).summary["iterations"] == 3


def test_a_run_that_continued_while_it_was_read_is_refused() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=1, **settings)
    outdated = Training.from_run("run", iterations=5)
    resume("run", iterations=3)
    with pytest.raises(ConfigError, match=r"the run in run continued while it was read. Resume it again"):
        outdated.run()
    assert len(read_metrics("run")) == 3
    assert last_checkpoint("run").about["iterations"] == 3
