"""A run that is stopped in any way resumes as if it had never stopped."""

import json
import logging
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.checkpoints.store import Checkpoints
from raceway.errors import EnvironmentFailed
from raceway.rollouts.evaluation import evaluate
from raceway.runs.metrics_file import read_metrics
from raceway.training.train import Training, resume, train
from raceway.ui.callback import Callback
from tests.conftest import GENEROUS
from tests.training.saved_runs import (
    ASYNCHRONOUS,
    HANGING_ENV,
    SYNCHRONOUS,
    FailsOnce,
    assert_same_state,
    assert_state_restored,
    command_options,
    last_checkpoint,
    settings_of,
    start_command,
)


@pytest.fixture(autouse=True)
def _in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_resumed_run_ends_in_identical_state(name: str) -> None:
    """Also on other engines and with other numbers of workers, stopped with different episodes in progress."""
    algorithm, settings = settings_of(name)
    train(algorithm, run_dir="whole", engine="inline", iterations=9, **settings)
    train(algorithm, run_dir="parts", engine="process", num_workers=2, iterations=2, **settings)
    resume("parts", iterations=3)
    resume("parts", iterations=6, engine="inline", num_workers="auto")
    resume("parts", iterations=9, engine="process", num_workers=1)
    assert_same_state("whole", "parts")
    rows = [read_metrics(run) for run in ("whole", "parts")]
    for whole, resumed in zip(*rows, strict=True):
        assert whole.keys() - resumed.keys() <= {"time/save_seconds"}
        assert {k: v for k, v in whole.items() if not k.startswith("time/")} == {
            k: v for k, v in resumed.items() if not k.startswith("time/")
        }


def test_a_run_resumed_on_ray_ends_in_identical_state(ray_session: None) -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="whole", engine="inline", iterations=4, **settings)
    train(algorithm, run_dir="parts", engine="inline", iterations=1, **settings)
    resume("parts", iterations=3, engine="ray", num_workers=2)
    resume("parts", iterations=4, engine="process", num_workers=2)
    assert_same_state("whole", "parts")


def test_a_learning_rate_schedule_is_resumed() -> None:
    """It follows the length of the whole run, wherever the run was stopped."""
    algorithm, settings = settings_of("ppo cartpole")
    settings |= {"total_timesteps": 8 * 128, "lr_end": 0.0, "eval_every": 300, "eval_episodes": 2}
    train(algorithm, run_dir="whole", engine="inline", **settings)
    train(algorithm, run_dir="parts", engine="inline", iterations=3, **settings)
    assert resume("parts", iterations=10**6).summary["stopped_by"] == "total_timesteps"
    assert_same_state("whole", "parts")


@pytest.mark.parametrize(
    "name", [*(name for name in SYNCHRONOUS if "cartpole" in name), "maml point", "ppo HalfCheetah-v5"]
)
def test_saving_does_not_change_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by steps nor by the clock, at any frequency."""
    monkeypatch.setattr("raceway.checkpoints.saver.LONG_ITERATION_SECONDS", 1e9)  # whatever else the machine does
    algorithm, settings = settings_of(name)
    train(algorithm, run_dir="never", engine="inline", iterations=6, save_seconds=0, **settings)
    train(algorithm, run_dir="steps", engine="process", num_workers=2, iterations=6, save_every=1, **settings)
    train(algorithm, run_dir="clock", engine="inline", iterations=6, save_seconds=1e-9, keep=1, **settings)
    assert len(Checkpoints("never/checkpoints").all()) == 2  # at the start and at the end
    assert len(Checkpoints("steps/checkpoints").all()) == 3
    assert len(Checkpoints("clock/checkpoints").all()) <= 2  # the latest and the best
    assert_same_state("never", "steps")
    assert_same_state("never", "clock")


INSTANTS = [*((name, instant) for name in ("ppo cartpole", "dqn cartpole") for instant in range(2)),
            ("maml cheetah-direction", 0), ("reinforce HalfCheetah-v5", 0)]  # fmt: skip


@pytest.mark.parametrize(("name", "instant"), INSTANTS)
def test_a_run_killed_at_a_random_instant_ends_in_identical_state(name: str, instant: int) -> None:
    """In the middle of iterations and of saves, on one engine, and resumed on another."""
    algorithm, settings = settings_of(name)
    rng, length = random.Random(f"{name} {instant}"), 30 if algorithm in ("ppo", "maml", "reinforce") else 90
    engines = [{"engine": "inline"}, {"engine": "process", "num_workers": 2}]
    rng.shuffle(engines)
    options = command_options({**settings, "run_dir": "parts", "iterations": 10**6, "save_every": 50, **engines[0]})
    with start_command("train", algorithm, *options) as run:
        kill_after(run, rng.randrange(3, length - 5), rng.random())
    assert run.returncode == -signal.SIGKILL
    saved = Checkpoints("parts/checkpoints").all()[-1]
    length = saved.about["iterations"] + 5
    result = resume("parts", iterations=length, **{"num_workers": "auto"} | engines[1])
    assert 0 < saved.steps == result.summary["resumed_at"] < result.summary["timesteps"]
    train(algorithm, run_dir="whole", engine="inline", iterations=length, **settings)
    assert_same_state("whole", "parts")
    assert [row["time/iterations"] for row in result.metrics] == list(range(1, length + 1))


def kill_after(run: subprocess.Popen[str], rows: int, share: float) -> None:
    """Kill a run with a checkpoint after this many iterations plus a share of the duration of one."""
    metrics, start = Path("parts/metrics.jsonl"), time.monotonic()
    times = []
    while run.poll() is None and not (len(times) >= rows and Checkpoints("parts/checkpoints").all()[-1].steps):
        num_rows = metrics.read_text().count("\n") if metrics.exists() else 0
        times += [time.monotonic() - start] * (num_rows - len(times))
        time.sleep(0.001)  # the run needs the core more than this loop
    time.sleep(share * (times[-1] - times[0]) / len(times))
    run.kill()
    run.communicate()


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_an_asynchronous_run_resumes_with_all_its_state(algorithm: str) -> None:
    """Weights, optimiser, replay, counters, and items in flight."""
    settings = {"env": "cartpole", "seed": 1, **ASYNCHRONOUS[algorithm]}
    train(algorithm, run_dir="run", iterations=30, engine="process", num_workers=2, **settings)
    saved = last_checkpoint("run")
    assert_state_restored("run", "inline")
    result = resume("run", iterations=60)
    assert result.summary["iterations"] == 60
    assert result.summary["timesteps"] > saved.about["steps"]
    before, after = saved.state(), last_checkpoint("run").state()
    assert gradient_steps(after["learner"]) > gradient_steps(before["learner"]) > 0
    if algorithm == "apex":
        assert num_stored_rows(after) > num_stored_rows(before) > 100


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_a_killed_asynchronous_run_resumes_with_all_its_saved_state(algorithm: str) -> None:
    settings = {"env": "cartpole", "seed": 1, **ASYNCHRONOUS[algorithm]}
    settings["metrics_interval"] = 0.0
    options = {**settings, "run_dir": "parts", "iterations": 10**6, "save_every": 2000, "num_workers": 2}
    with start_command("train", algorithm, *command_options(options)) as run:
        kill_after(run, 40, random.Random(algorithm).random())
    assert run.returncode == -signal.SIGKILL
    steps = last_checkpoint("parts").steps
    assert_state_restored("parts", "process")
    result = resume("parts", iterations=last_checkpoint("parts").about["iterations"] + 5)
    assert 0 < steps == result.summary["resumed_at"] < result.summary["timesteps"]


def stages(state: Any) -> list[dict[str, Any]]:
    return [stage for stage in state["flow"]["stages"].values() if isinstance(stage, dict)]


def num_stored_rows(state: Any) -> int:
    """Return how many rows were ever inserted into replay."""
    shards = [shard for stage in stages(state) for shard in stage.get("shards", ())]
    return sum(shard["actor"]["buffer"]["next"] for shard in shards if "buffer" in (shard["actor"] or {}))


@pytest.mark.parametrize("place", ["thread", "actor"])
def test_a_remote_learner_is_saved(place: str) -> None:
    settings = {"env": "cartpole", **ASYNCHRONOUS["impala"], "learner_on": place, "engine": "process", "num_workers": 1}
    train("impala", run_dir="run", iterations=20, **settings)
    before = remote_gradient_steps("run")
    assert before >= 20
    assert resume("run", iterations=25).summary["iterations"] == 25
    assert remote_gradient_steps("run") > before


def remote_gradient_steps(run: str) -> int:
    """Return the gradient steps of a learner on a thread or actor."""
    operators = [stage["op"] for stage in stages(last_checkpoint(run).state()) if stage.get("op")]
    (operator,) = operators
    return gradient_steps(operator["function"])


def gradient_steps(learner: Any) -> int:
    """Return the gradient steps of the optimiser in a learner's state."""
    steps = int(learner["objectives"]["agent"]["optimiser"]["steps"])
    assert steps == learner["version"]
    return steps


def test_a_signal_ends_a_long_iteration() -> None:
    """Only the work since the last checkpoint is lost."""
    Path("hanging.py").write_text(HANGING_ENV)
    settings = {"env": "hanging:Hanging-v0", "num_envs": 2, "num_shards": 1, "run_dir": "run", "save_every": 1}
    with start_command("train", "a2c", *command_options(settings), "--local") as run:
        while run.poll() is None and not Path("hangs").exists():
            time.sleep(0.01)
        run.send_signal(signal.SIGTERM)
        _, error = run.communicate(timeout=GENEROUS)
    assert run.returncode == 143, error
    assert "Traceback" not in error
    assert last_checkpoint("run").about["iterations"] == 4
    assert json.loads(Path("run/summary.json").read_text())["stopped_by"] == "terminated"


def test_resume_falls_back_from_a_corrupt_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    algorithm, settings = settings_of("ppo cartpole")
    train(algorithm, run_dir="whole", engine="inline", iterations=6, **settings)
    train(algorithm, run_dir="run", engine="inline", iterations=4, save_every=1, **settings)
    newest = last_checkpoint("run").path
    (newest / "state.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        result = resume("run", iterations=6)
    assert f"{newest / 'state.safetensors'}: it has 0 bytes" in caplog.text
    assert 0 < result.summary["resumed_at"] < int(newest.name)
    assert_same_state("whole", "run")


def test_evaluations_are_resumed_and_the_best_is_kept() -> None:
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
    assert_same_state("whole", "parts")
    plain = train(algorithm, run_dir="plain", iterations=9, engine="inline", **settings)
    assert plain.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_a_worker_that_dies_during_a_save_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class KillWorker(Callback):
        """Kills the worker once, just before a checkpoint."""

        def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
            if row["time/iterations"] == 3:
                (worker,) = workers
                os.kill(worker.call("pid").result(GENEROUS), signal.SIGKILL)

    workers: list[Any] = []
    spawn = Training._spawn
    monkeypatch.setattr(Training, "_spawn", lambda *args: workers.extend(spawn(*args)) or workers)

    algorithm, settings = settings_of("ppo cartpole")
    more = {"engine": "process", "num_workers": 1, "iterations": 6, "save_every": 1, "run_dir": "run"}
    result = train(algorithm, callbacks=[KillWorker()], **more, **settings)
    assert result.summary["iterations"] == 6
    assert result.summary["timesteps"] == 6 * 128
    assert last_checkpoint("run").about["iterations"] == 6


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_workers_resume_with_the_trained_weights(algorithm: str) -> None:
    settings = {"env": "cartpole", "seed": 1, **ASYNCHRONOUS[algorithm]}
    train(algorithm, run_dir="run", iterations=30, engine="inline", **settings)
    training, saved = Training.from_run("run"), last_checkpoint("run").state()
    training.learner.restore(saved["learner"])
    with training.open_flow(run=True) as flow, flow.start(state=saved["flow"]) as run:
        worker = next(actor for node in run.nodes for actor in node.actors if actor.name.startswith("rollouts"))
        weights = worker.call("received").result()["weights"]
    parts = training.agent.worker_parts
    expected = training.agent.weights(parts)
    assert weights.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(weights[name], array)


def test_an_environment_that_fails_while_restored_is_tolerated(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"num_envs": 2, "num_shards": 1, "engine": "inline", "seed": 1}
    train("a2c", env=FailsOnce, run_dir="run", iterations=2, **settings)
    FailsOnce.fails = True
    with caplog.at_level(logging.WARNING):
        result = resume("run", iterations=4, env=FailsOnce)
    assert result.summary["iterations"] == 4
    assert "not again" in caplog.text
    assert "environments could not be restored" in caplog.text
    assert result.metrics[-1]["rollout/env_failures"] == 1


def test_an_environment_that_fails_in_an_evaluation_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    class RecordEvaluations(Callback):
        def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
            evaluated.append("eval/mean_reward" in row)

    evaluated: list[bool] = []
    failures = iter([True, False])

    def fail_once(*args: Any, **settings: Any) -> Any:
        if next(failures):
            raise EnvironmentFailed("environment step raised RuntimeError: no", 0, "here")
        return evaluate(*args, **settings)

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("raceway.training.evaluations.evaluate", fail_once)
        algorithm, settings = settings_of("ppo cartpole")
        more = {"eval_every": 200, "eval_episodes": 1, "engine": "inline", "iterations": 4}
        train(algorithm, run_dir="run", callbacks=[RecordEvaluations()], **settings, **more)
    assert evaluated == [False, False, False, True]
    assert "the evaluation after 256 steps was abandoned" in caplog.text
