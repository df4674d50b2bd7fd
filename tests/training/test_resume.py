"""A run that is stopped, in whatever way, goes on as if it never had been."""

import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import raceway
from raceway.checkpoints.encoding import differences, encode
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.errors import CheckpointError, ConfigError, EnvironmentFailed
from raceway.rollouts.evaluation import evaluate
from raceway.runs.directory import RunDirectory, read_metrics
from raceway.training.train import Training, resume, train
from raceway.ui.display import Callback
from tests.conftest import GENEROUS

SYNCHRONOUS: dict[str, dict[str, Any]] = {
    "reinforce cartpole": {"episodes_per_iter": 8, "num_envs": 8, "num_shards": 2},
    "a2c cartpole": {"num_envs": 8, "num_shards": 2, "normalise_obs": True, "scale_rewards": True},
    "ppo cartpole": {"num_envs": 8, "num_shards": 2, "fragment_steps": 16, "num_minibatches": 4, "num_epochs": 2},
    "dqn cartpole": {
        "num_envs": 8, "num_shards": 2, "fragment_steps": 4, "learning_starts": 100, "batch_size": 16, "n_step": 3,
        "buffer_size": 150, "target_every": 5, "steps_per_update": 16,
    },
    "maml point": {"num_envs": 8, "num_shards": 2},
    "maml cheetah-direction": {"num_envs": 4, "num_shards": 2, "env_kwargs": {"max_episode_steps": 30}},
    "reinforce HalfCheetah-v5": {
        "episodes_per_iter": 2, "num_envs": 2, "num_shards": 2, "env_kwargs": {"max_episode_steps": 40},
    },
    "a2c HalfCheetah-v5": {"num_envs": 4, "num_shards": 2, "env_kwargs": {"max_episode_steps": 60}},
    "ppo HalfCheetah-v5": {
        "num_envs": 4, "num_shards": 2, "fragment_steps": 25, "batch_steps": 100, "num_minibatches": 4, "num_epochs": 2,
        "env_kwargs": {"max_episode_steps": 60},
    },
}  # fmt: skip
ASYNCHRONOUS: dict[str, dict[str, Any]] = {
    "a3c": {"num_envs": 8, "num_shards": 2},
    "impala": {"num_envs": 8, "num_shards": 2},
    "apex": {
        "num_envs": 8, "num_shards": 2, "fragment_steps": 8, "learning_starts": 100, "batch_size": 16,
        "buffer_size": 2000, "steps_per_update": 16,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings_of(name: str) -> tuple[str, dict[str, Any]]:
    algorithm, env = name.split()
    return algorithm, {"env": env, "seed": 3, **SYNCHRONOUS[name]}


def last(run: str) -> Checkpoint:
    return Checkpoints(Path(run) / "checkpoints").find("latest")


def assert_same(one: str, other: str) -> None:
    """Compare all that two runs are in the end, and say what differs."""
    states = [encode(last(run).state())[0] for run in (one, other)]
    assert list(differences(*states)) == []
    assert last(one).sha256 == last(other).sha256


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_goes_on_to_the_same_bytes(name: str) -> None:
    """On other engines, and with other numbers of workers, too. It is stopped at places that differ in what is open."""
    algorithm, settings = settings_of(name)
    train(algorithm, run_dir="whole", engine="inline", iterations=9, **settings)
    train(algorithm, run_dir="parts", engine="process", num_workers=2, iterations=2, **settings)
    resume("parts", iterations=3)
    resume("parts", iterations=6, engine="inline", num_workers="auto")
    resume("parts", iterations=9, engine="process", num_workers=1)
    assert_same("whole", "parts")
    rows = [read_metrics(run) for run in ("whole", "parts")]
    for one, other in zip(*rows, strict=True):
        assert one.keys() - other.keys() <= {"time/save_seconds"}
        assert {k: v for k, v in one.items() if not k.startswith("time/")} == {
            k: v for k, v in other.items() if not k.startswith("time/")
        }


def test_on_ray_too(ray_session: None) -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="whole", engine="inline", iterations=4, **settings)
    train(algorithm, run_dir="parts", engine="inline", iterations=1, **settings)
    resume("parts", iterations=3, engine="ray", num_workers=2)
    resume("parts", iterations=4, engine="process", num_workers=2)
    assert_same("whole", "parts")


def test_a_schedule_that_ends_with_the_run_goes_on_too() -> None:
    """The step size is that of the whole run, wherever it was stopped."""
    algorithm, settings = settings_of("ppo cartpole")
    settings |= {"total_timesteps": 8 * 128, "lr_end": 0.0, "eval_every": 300, "eval_episodes": 2}
    train(algorithm, run_dir="whole", engine="inline", **settings)
    train(algorithm, run_dir="parts", engine="inline", iterations=3, **settings)
    assert resume("parts", iterations=10**6).summary["stopped_by"] == "total_timesteps"
    assert_same("whole", "parts")


@pytest.mark.parametrize(
    "name", [*(name for name in SYNCHRONOUS if "cartpole" in name), "maml point", "ppo HalfCheetah-v5"]
)
def test_saving_changes_nothing(name: str) -> None:
    """Neither by steps, nor by the clock, however often."""
    algorithm, settings = settings_of(name)
    train(algorithm, run_dir="never", engine="inline", iterations=6, save_seconds=0, **settings)
    train(algorithm, run_dir="steps", engine="process", num_workers=2, iterations=6, save_every=1, **settings)
    train(algorithm, run_dir="clock", engine="inline", iterations=6, save_seconds=1e-9, keep=1, **settings)
    assert len(Checkpoints("never/checkpoints").all()) == 2  # of the beginning, and of the end
    assert len(Checkpoints("steps/checkpoints").all()) == 3
    assert len(Checkpoints("clock/checkpoints").all()) <= 2  # the best besides
    assert_same("never", "steps")
    assert_same("never", "clock")


PROGRAM = "from raceway.cli import main; import sys; sys.exit(main(sys.argv[1:]))"


def options_of(settings: dict[str, Any]) -> list[str]:
    found = []
    for name, value in settings.items():
        found.append("--" + name.replace("_", "-"))
        found += (
            [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else [] if value is True else [str(value)]
        )
    return found


def command(*arguments: str) -> subprocess.Popen[str]:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], **pipes)


INSTANTS = [*((name, 0) for name in SYNCHRONOUS), ("ppo cartpole", 1), ("dqn cartpole", 1)]


@pytest.mark.parametrize(("name", "instant"), INSTANTS)
def test_killed_at_a_random_instant(name: str, instant: int) -> None:
    """Ten of them: in the middle of iterations and of saves, on one engine, and resumed on another."""
    algorithm, settings = settings_of(name)
    chance, length = random.Random(f"{name} {instant}"), 30 if algorithm in ("ppo", "maml", "reinforce") else 90
    train(algorithm, run_dir="whole", engine="inline", iterations=length, **settings)
    engines = [{"engine": "inline"}, {"engine": "process", "num_workers": 2}]
    chance.shuffle(engines)
    options = options_of({**settings, "run_dir": "parts", "iterations": length, "save_every": 50, **engines[0]})
    with command("train", algorithm, *options) as run:
        kill_after(run, chance.randrange(3, length - 5), chance.random())
    assert run.returncode == -signal.SIGKILL, "it was over before it was killed"
    steps = Checkpoints("parts/checkpoints").all()[-1].steps
    result = resume("parts", **{"num_workers": "auto"} | engines[1])
    assert 0 < steps == result.summary["resumed_at"] < result.summary["timesteps"]
    assert_same("whole", "parts")
    assert [row["time/iterations"] for row in result.metrics] == list(range(1, length + 1))


def kill_after(run: subprocess.Popen[str], rows: int, share: float) -> None:
    """Kill a run that has a checkpoint, some time after so many iterations: about a share of what one takes."""
    metrics, began = Path("parts/metrics.jsonl"), time.monotonic()
    times = []
    while run.poll() is None and not (len(times) >= rows and Checkpoints("parts/checkpoints").all()[-1].steps):
        seen = metrics.read_text().count("\n") if metrics.exists() else 0
        times += [time.monotonic() - began] * (seen - len(times))
    time.sleep(share * (times[-1] - times[0]) / len(times))
    run.kill()
    run.communicate()


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
@pytest.mark.parametrize("engine", ["inline", "process"])
def test_an_asynchronous_run_loses_nothing(algorithm: str, engine: str) -> None:
    """Where it goes on there is all that was saved: weights, optimiser, replay, counters, and items under way."""
    settings = {"env": "cartpole", "seed": 1, **ASYNCHRONOUS[algorithm]}
    workers: dict[str, Any] = {"engine": engine} if engine == "inline" else {"engine": engine, "num_workers": 2}
    train(algorithm, run_dir="run", iterations=30, **workers, **settings)
    saved = last("run")
    assert_nothing_lost("run", "inline")
    result = resume("run", iterations=60)
    assert result.summary["iterations"] == 60
    assert result.summary["timesteps"] > saved.about["steps"]
    then, now = saved.state(), last("run").state()
    assert now["learner"]["optimiser"]["steps"] > then["learner"]["optimiser"]["steps"] > 0
    if algorithm == "apex":
        assert replayed(now) > replayed(then) > 100


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_an_asynchronous_run_that_was_killed_loses_nothing_that_was_saved(algorithm: str) -> None:
    settings = {"env": "cartpole", "seed": 1, **ASYNCHRONOUS[algorithm]}
    options = {**settings, "run_dir": "parts", "iterations": 10**6, "save_every": 2000, "num_workers": 2}
    with command("train", algorithm, *options_of(options)) as run:
        kill_after(run, 40, random.Random(algorithm).random())
    assert run.returncode == -signal.SIGKILL
    steps = last("parts").steps
    assert_nothing_lost("parts", "process")
    result = resume("parts", iterations=last("parts").about["iterations"] + 5)
    assert 0 < steps == result.summary["resumed_at"] < result.summary["timesteps"]


def assert_nothing_lost(run: str, engine: str) -> None:
    """Go on with a run, and have it say at once where it is: just where it was."""
    training, saved = Training.again(run, engine=engine), last(run).state()
    training.learner.restore(saved["learner"])
    training.evaluations.restore(saved["evaluations"])
    with training.open_flow(run=engine == "process") as flow, flow.start(state=saved["flow"]) as going:
        again = training._state(going)
    (doc, arrays), (other, others) = encode(last(run).state()), encode(again)
    # Workers, which had weights of several ages, are sent the newest.
    assert [one for one in differences(doc, other) if "/version: " not in one] == []
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], name)
    assert sum(array.nbytes for array in arrays.values()) > 1000


def stages(state: Any) -> list[dict[str, Any]]:
    return [stage for stage in state["flow"]["stages"].values() if isinstance(stage, dict)]


def replayed(state: Any) -> int:
    """Return how many rows were ever put into replay."""
    shards = [shard for stage in stages(state) for shard in stage.get("shards", ())]
    return sum(shard["actor"]["buffer"]["next"] for shard in shards if "buffer" in (shard["actor"] or {}))


@pytest.mark.parametrize("place", ["thread", "actor"])
def test_a_learner_that_is_elsewhere_is_saved_too(place: str) -> None:
    settings = {"env": "cartpole", **ASYNCHRONOUS["impala"], "learner_on": place, "engine": "process", "num_workers": 1}
    train("impala", run_dir="run", iterations=20, **settings)
    before = steps_elsewhere("run")
    assert before >= 20
    assert resume("run", iterations=25).summary["iterations"] == 25
    assert steps_elsewhere("run") > before


def steps_elsewhere(run: str) -> int:
    """Return the steps of the optimiser of the learner that has a place of its own."""
    (found,) = [stage["op"]["function"]["optimiser"]["steps"] for stage in stages(last(run).state()) if stage.get("op")]
    return int(found)


def test_a_signal_in_a_long_iteration_ends_it_all_the_same() -> None:
    """The work since the last checkpoint is lost then, and nothing else."""
    Path("long.py").write_text(LONG)
    options = options_of({"env": "long:Long-v0", "num_envs": 2, "num_shards": 1, "run_dir": "run", "save_every": 1})
    with command("train", "a2c", *options, "--local") as run:
        while run.poll() is None and not Path("hangs").exists():
            pass
        run.send_signal(signal.SIGTERM)
        _, error = run.communicate(timeout=GENEROUS)
    assert run.returncode == 143, error
    assert "Traceback" not in error
    assert last("run").about["iterations"] == 4
    assert json.loads(Path("run/summary.json").read_text())["stopped_by"] == "terminated"


LONG = """
import time
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Long(CartPoleEnv):
    steps = 0
    def step(self, action):
        Long.steps += 1
        if Long.steps == 43:  # of two environments, five steps an iteration
            Path("hangs").touch()
            time.sleep(1000)
        return super().step(action)

gymnasium.register("Long-v0", Long)
"""


def test_a_finished_run_has_nothing_left_to_do() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=3, **settings)
    before = last("run").sha256
    result = resume("run")
    assert result.summary["stopped_by"] == "iterations"
    assert last("run").sha256 == before == result.summary["state_sha256"]


def test_auto_begins_or_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    algorithm, settings = settings_of("ppo cartpole")
    with pytest.raises(ConfigError, match="--resume auto goes on with the run in --run-dir"):
        train(algorithm, resume="auto", **settings)
    some = {**settings, "engine": "inline", "run_dir": "run", "resume": "auto"}
    assert train(algorithm, iterations=2, **some).summary["resumed_at"] is None
    assert train(algorithm, iterations=5, **some).summary["resumed_at"] == 256
    train(algorithm, iterations=5, run_dir="whole", engine="inline", **settings)
    assert_same("whole", "run")
    with pytest.raises(ConfigError, match=r"is of ppo, not of a2c"):
        train("a2c", env="cartpole", run_dir="run", resume="auto")


def test_what_may_not_change_is_told() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=1, **settings)
    with pytest.raises(
        ConfigError, match=r"lr may not change when a run is resumed: it is .*, not 0.5. These may: engine.*save_every"
    ):
        resume("run", lr=0.5)
    with pytest.raises(ConfigError, match=r"env may not change .*it is 'CartPole-v1', not 'acrobot'"):
        resume("run", env="acrobot")
    with pytest.raises(ConfigError, match=r"unknown setting of ppo 'num_worker'. Did you mean 'num_workers'"):
        resume("run", num_worker=2)


def test_what_is_no_run_is_told() -> None:
    Path("empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty is no run: it has no config.json"):
        resume("empty")
    with pytest.raises(ConfigError, match=r"there is no folder nowhere"):
        resume("nowhere")
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="many/one", engine="inline", iterations=1, **settings)
    with pytest.raises(ConfigError, match=r"many is no run.*It holds the runs one"):
        resume("many")
    shutil.rmtree("many/one/checkpoints")
    with pytest.raises(CheckpointError, match="there is no checkpoint to go on from"):
        resume("many/one")


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"seed": 4}, "its seed is 3, not 4"),
        ({"algorithm": "a2c"}, "its algorithm is 'ppo', not 'a2c'"),
        ({"env": "acrobot"}, "its env is 'CartPole-v1', not 'Acrobot-v1'"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(other: dict[str, Any], what: str) -> None:
    """By who goes on with it, and by who plays with it."""
    some = {"algorithm": "ppo", "env": "cartpole", "seed": 3, "num_envs": 4, "num_shards": 2, "engine": "inline"}
    train(run_dir="one", iterations=1, **some)
    train(run_dir="two", iterations=1, **{**some, **other})
    shutil.rmtree("two/checkpoints")
    shutil.copytree("one/checkpoints", "two/checkpoints")
    with pytest.raises(CheckpointError, match=f"it is of another run: {what}"):
        resume("two")
    with pytest.raises(CheckpointError, match=f"it is of another run: {what}"):
        raceway.load("two")


def test_a_run_that_is_being_trained_and_has_no_checkpoint_is_told_as_such() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=1, **settings)
    shutil.rmtree("run/checkpoints")
    held = RunDirectory.again("run")
    with pytest.raises(ConfigError, match="is being trained, and has no checkpoint yet"):
        resume("run")
    held.close()


def test_auto_changes_nothing_for_settings_that_make_no_sense() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=1, **settings)
    shutil.rmtree("run/checkpoints")
    before = Path("run/config.json").read_text()
    with pytest.raises(ConfigError):
        train("a2c", env="nonsense", run_dir="run", resume="auto")
    with pytest.raises(ConfigError, match="is of ppo on CartPole-v1, not of a2c on Acrobot-v1"):
        train("a2c", env="acrobot", run_dir="run", resume="auto", engine="inline", num_envs=4)
    assert Path("run/config.json").read_text() == before


def test_a_corrupt_checkpoint_is_told_and_the_one_before_taken(caplog: pytest.LogCaptureFixture) -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="whole", engine="inline", iterations=6, **settings)
    train(algorithm, run_dir="run", engine="inline", iterations=4, save_every=1, **settings)
    newest = last("run").path
    (newest / "state.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        result = resume("run", iterations=6)
    assert f"{newest / 'state.safetensors'}: it has 0 bytes" in caplog.text
    assert 0 < result.summary["resumed_at"] < int(newest.name)
    assert_same("whole", "run")


def test_nothing_that_a_run_names_is_imported_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.py").write_text(
        "import gymnasium\nfrom pathlib import Path\nPath('imported').touch()\n"
        "gymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=20)\n"
    )
    monkeypatch.syspath_prepend(".")
    train("ppo", env="mine:Mine-v0", run_dir="run", engine="inline", iterations=1, num_envs=4, num_shards=1)
    del sys.modules["mine"], gymnasium.registry["Mine-v0"]
    Path("imported").unlink()
    with pytest.raises(ConfigError, match=r"env of this run is 'mine:Mine-v0': a module.*--env mine:Mine-v0.*--trust"):
        resume("run", iterations=2)
    assert not Path("imported").exists()
    assert resume("run", iterations=2, env="mine:Mine-v0").summary["iterations"] == 2
    assert resume("run", iterations=3, trust=True).summary["iterations"] == 3


def test_what_was_given_in_python_is_given_again() -> None:
    def world() -> Any:
        return gymnasium.make("CartPole-v1", max_episode_steps=30)

    some: dict[str, Any] = {"num_envs": 4, "num_shards": 2, "engine": "inline", "seed": 1}
    train("a2c", env=world, run_dir="run", iterations=3, **some)
    train("a2c", env=world, run_dir="whole", iterations=6, **some)
    with pytest.raises(ConfigError, match=r"the env of this run is a function, 'world'. Give it again"):
        resume("run", iterations=6)
    resume("run", iterations=6, env=world)
    assert_same("whole", "run")


def test_evaluations_go_on_and_the_best_is_kept() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    more = {"eval_every": 200, "eval_episodes": 2, "keep": 1, "engine": "inline"}
    whole = train(algorithm, run_dir="whole", iterations=9, **settings, **more)
    train(algorithm, run_dir="parts", iterations=4, **settings, **more)
    resume("parts", iterations=9)
    scores = {
        row["time/total_timesteps"]: row["eval/mean_reward"] for row in whole.metrics if "eval/mean_reward" in row
    }
    assert list(scores) == [256, 512, 640, 896, 1024]
    best = Checkpoints("whole/checkpoints").best()
    assert best is not None
    assert best.about["score"] == max(scores.values()) == scores[best.about["steps"]]
    assert_same("whole", "parts")
    plain = train(algorithm, run_dir="plain", iterations=9, engine="inline", **settings)
    assert plain.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_a_run_knows_what_it_is() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    result = train(algorithm, run_dir="run", engine="inline", iterations=2, **settings)
    about = json.loads(Path("run/config.json").read_text())
    assert about["spaces"]["action"] == {"type": "Discrete", "n": 2, "start": 0, **about["spaces"]["action"]}
    assert about["policy"]["kind"] == "actor-critic"
    assert about["env"] == {"name": "CartPole-v1", "kwargs": {}, "vector": "auto"}
    assert Path("run/plan.svg").read_text().startswith("<svg")
    assert list(Path("run").glob("events.out.tfevents.*"))
    assert re.fullmatch(rf"process {os.getpid()} on .*\n", Path("run/lock").read_text())
    assert result.summary["state_sha256"] == last("run").sha256
    assert raceway.resume("run", iterations=3).summary["iterations"] == 3


def test_a_run_remembers_how_often_it_was_resumed_and_what_changed() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=2, **settings)
    first = json.loads(Path("run/config.json").read_text())
    resume("run", iterations=3)
    resume("run", iterations=3, total_timesteps=100_000, engine="process", num_workers=1)
    about = json.loads(Path("run/config.json").read_text())
    assert {name: about[name] for name in ("started", "command", "versions")} == {
        name: first[name] for name in ("started", "command", "versions")
    }
    assert [(one["steps"], one["changed"]) for one in about["resumes"]] == [
        (256, {"iterations": 3}),
        (384, {"total_timesteps": 100_000, "engine": "process", "num_workers": 1}),
    ]
    assert about["config"] == {**first["config"], **about["resumes"][0]["changed"], **about["resumes"][1]["changed"]}


def test_a_worker_that_dies_while_a_run_is_saved_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killer(Callback):
        """Kills the worker, once, after the row before a checkpoint."""

        def on_iteration(self, row: dict[str, Any]) -> None:
            if row["time/iterations"] == 3:
                (worker,) = workers
                os.kill(worker.call("pid").result(GENEROUS), signal.SIGKILL)

    workers: list[Any] = []
    spawn = Training._spawn
    monkeypatch.setattr(Training, "_spawn", lambda *args: workers.extend(spawn(*args)) or workers)

    algorithm, settings = settings_of("ppo cartpole")
    more = {"engine": "process", "num_workers": 1, "iterations": 6, "save_every": 1, "run_dir": "run"}
    result = train(algorithm, callbacks=[Killer()], **more, **settings)
    assert result.summary["iterations"] == 6
    assert result.summary["timesteps"] == 6 * 128
    assert last("run").about["iterations"] == 6


def test_a_run_that_fails_says_what_is_saved() -> None:
    text = LONG.replace("Long", "Broken").replace("time.sleep(1000)", "raise RuntimeError('lost')")
    Path("broken.py").write_text(text)
    options = options_of({"env": "broken:Broken-v0", "num_envs": 2, "num_shards": 1, "run_dir": "run", "save_every": 1})
    with command("train", "a2c", *options, "--local", "--max-env-failures", "0") as run:
        _, error = run.communicate(timeout=GENEROUS)
    assert run.returncode == 1
    assert "raised RuntimeError: lost" in error
    assert "What was trained before is saved. Go on with: raceway resume run" in error
    assert last("run").about["iterations"] == 4


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_workers_go_on_with_weights_that_were_trained(algorithm: str) -> None:
    settings = {"env": "cartpole", "seed": 1, **ASYNCHRONOUS[algorithm]}
    train(algorithm, run_dir="run", iterations=30, engine="inline", **settings)
    training, saved = Training.again("run"), last("run").state()
    training.learner.restore(saved["learner"])
    with training.open_flow(run=False) as flow, flow.start(state=saved["flow"]) as run:
        worker = next(actor for node in run.nodes for actor in node.actors if actor.name.startswith("rollouts"))
        found = worker.call("weights").result()
    for name, array in training.learner.policy.weights().items():
        np.testing.assert_array_equal(found[name], array)


def test_auto_begins_anew_if_nothing_was_saved_yet() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    some = {**settings, "engine": "inline", "run_dir": "run", "resume": "auto", "iterations": 2}
    train(algorithm, **some)
    shutil.rmtree("run/checkpoints")
    assert train(algorithm, **some).summary["resumed_at"] is None
    assert last("run").about["iterations"] == 2
    assert len(read_metrics("run")) == 2
    shutil.rmtree("run/checkpoints")
    held = RunDirectory.again("run")
    with pytest.raises(ConfigError, match=rf"is being trained by process {os.getpid()}"):
        train(algorithm, **some)
    held.close()


def test_an_environment_given_in_python_may_have_another_name() -> None:
    def world() -> Any:
        return gymnasium.make("CartPole-v1", max_episode_steps=30)

    some: dict[str, Any] = {"num_envs": 4, "num_shards": 2, "engine": "inline", "seed": 1}
    train("a2c", env=world, run_dir="run", iterations=1, **some)
    resume("run", iterations=2, env=lambda: world())
    assert resume("run", iterations=3, env=world).summary["iterations"] == 3


class Touchy(CartPoleEnv):
    """Fails in its first episode, from some step on, if it is told so."""

    fails = False

    def __init__(self, size: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self.size = size
        assert isinstance(size, tuple)

    def step(self, action: Any) -> Any:
        if Touchy.fails:
            Touchy.fails = False
            raise RuntimeError("not again")
        return super().step(action)


def test_an_environment_that_fails_while_it_is_brought_back_is_borne(caplog: pytest.LogCaptureFixture) -> None:
    some: dict[str, Any] = {"num_envs": 2, "num_shards": 1, "engine": "inline", "seed": 1}
    train("a2c", env=Touchy, run_dir="run", iterations=2, **some)
    Touchy.fails = True
    with caplog.at_level(logging.WARNING):
        result = resume("run", iterations=4, env=Touchy)
    assert result.summary["iterations"] == 4
    assert "not again" in caplog.text
    assert "environments could not be restored" in caplog.text
    assert result.metrics[-1]["rollout/env_failures"] == 1


def test_an_environment_that_fails_in_an_evaluation_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Callback):
        def on_iteration(self, row: dict[str, Any]) -> None:
            seen.append("eval/mean_reward" in row)

    seen: list[bool] = []
    calls = iter([True, False])

    def touchy(*args: Any, **settings: Any) -> Any:
        if next(calls):
            raise EnvironmentFailed("step of the environment raised RuntimeError: no", 0, "here")
        return evaluate(*args, **settings)

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("raceway.training.evaluations.evaluate", touchy)
        algorithm, settings = settings_of("ppo cartpole")
        more = {"eval_every": 200, "eval_episodes": 1, "engine": "inline", "iterations": 4}
        train(algorithm, run_dir="run", callbacks=[Failing()], **settings, **more)
    assert seen == [False, False, False, True]
    assert "the evaluation after 256 steps was given up" in caplog.text


def test_settings_that_a_file_changes_can_be_given_again() -> None:
    some: dict[str, Any] = {"num_envs": 2, "num_shards": 1, "engine": "inline", "hidden": [8, 8]}
    kwargs = {"size": (3, 4)}
    train("a2c", env=Touchy, env_kwargs=kwargs, run_dir="run", iterations=1, **some)
    with pytest.raises(ConfigError, match=r"env_kwargs of this run hold what a file cannot: .*Give them again"):
        resume("run", env=Touchy, iterations=2)
    more = {"run_dir": "run", "resume": "auto", **some}
    assert train("a2c", env=Touchy, env_kwargs=kwargs, iterations=3, **more).summary["iterations"] == 3


def test_a_run_that_goes_on_while_it_is_read_is_not_cut() -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="run", engine="inline", iterations=1, **settings)
    slow = Training.again("run", iterations=5)
    resume("run", iterations=3)
    with pytest.raises(ConfigError, match=r"the run in run has gone on while it was read. Resume it again"):
        slow.run()
    assert len(read_metrics("run")) == 3
    assert last("run").about["iterations"] == 3
