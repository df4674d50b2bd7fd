"""Recording a run: bounded files and memory, no metrics lost at checkpoints and errors, and how a run ended."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from raceway.algorithms import find_algorithm
from raceway.checkpoints.store import Checkpoints
from raceway.errors import CallbackError, ConfigError, OperatorError
from raceway.runs.metrics_file import read_metrics
from raceway.runs.reader import read_run
from raceway.runs.recorder import RunRecorder
from raceway.training.train import Training, resume, train
from raceway.training.train_seeds import train_seeds
from raceway.ui.callback import Callback
from tests.runs.test_merged_rows import Clock, iterations

SMALL: dict[str, Any] = {"env": "cartpole", "engine": "inline", "num_envs": 4, "fragment_steps": 8, "hidden": (8,)}
pytestmark = pytest.mark.usefixtures("in_tmp_path")


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class FailAt(Callback):
    """Raises after an iteration."""

    def __init__(self, iteration: int, error: BaseException) -> None:
        self.iteration, self.error = iteration, error

    def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
        if row["time/iterations"] == self.iteration:
            raise self.error


def record_fast_iterations(num: int, per_second: int) -> tuple[RunRecorder, int]:
    """Record iterations that take no time, and return the recorder and the bytes of memory that it still holds."""
    algorithm = find_algorithm("a2c")
    training, clock = Training(algorithm, algorithm.settings(**SMALL, run_dir="run")), Clock()
    metrics = iterations(1000)
    held: list[int] = []
    with RunRecorder(training, clock) as recorder:
        tracemalloc.start()
        try:
            for number in range(num):
                clock.now += 1 / per_second
                recorder.record(metrics[number % 1000] | {"time/iterations": number + 1})
                if number in (num // 5, num - 1):
                    recorder.flush()
                    held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        training.report.iterations = num
    return recorder, held[1] - held[0]


def test_fast_iterations_grow_neither_memory_nor_the_files_without_bound() -> None:
    """140 iterations a second make at most four rows a second, and nothing but the files grows."""
    recorder, growth = record_fast_iterations(num=14_000, per_second=140)
    assert growth < 100_000
    rows = recorder.result.metrics
    assert len(rows) <= 4 * 100 + 3
    assert sum(row["time/row_iterations"] for row in rows) == 14_000
    expected = [value for row in iterations(1000) for value in row["returns"]] * 14
    assert recorder.result.returns == expected
    assert sum(row["rollout/row_episodes"] for row in rows) == len(expected)


def test_the_rows_of_a_result_are_read_once_and_follow_the_file() -> None:
    result = train("a2c", **SMALL, iterations=2, metrics_interval=0, run_dir="run")
    assert result.metrics is result.metrics
    assert len(result.metrics) == 2
    resume("run", iterations=3)
    assert len(result.metrics) == 3
    Path("run/metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"metrics.jsonl is gone\. Read a result's metrics before"):
        _ = result.metrics


def row_ends(run: str) -> set[int]:
    return {row["time/iterations"] for row in read_metrics(run)}


def saved_iterations(run: str) -> set[int]:
    return {checkpoint.about["iterations"] for checkpoint in Checkpoints(f"{run}/checkpoints").all()}


def test_rows_end_at_checkpoints_and_evaluations() -> None:
    """So that resuming at a checkpoint neither splits a row nor loses one."""
    settings = {**SMALL, "metrics_interval": 1e9, "iterations": 14, "save_every": 96, "keep": 99, "eval_every": 160}
    whole = train("a2c", **settings, run_dir="whole")
    assert {3, 6, 9, 12, 14} <= saved_iterations("whole")
    assert row_ends("whole") == {1, 5, 10} | saved_iterations("whole") - {0}
    with pytest.raises(CallbackError, match="ZeroDivisionError"):
        train("a2c", **settings, run_dir="parts", callbacks=[FailAt(8, ZeroDivisionError())])
    assert row_ends("parts") == {1, 5, 8} | saved_iterations("parts") - {0}
    parts = resume("parts")
    assert row_ends("parts") >= {1, 5, 10} | saved_iterations("parts") - {0}
    assert sum(row["time/row_iterations"] for row in parts.metrics) == 14
    assert parts.returns == whole.returns
    assert parts.summary["state_sha256"] == whole.summary["state_sha256"]


def test_an_error_is_recorded_until_the_run_is_resumed() -> None:
    with pytest.raises(CallbackError, match="no such thing") as caught:
        train("a2c", **SMALL, iterations=5, run_dir="run", callbacks=[FailAt(3, ValueError("no such thing\nat all"))])
    run = read_run("run")
    error = "CallbackError: callback FailAt.on_iteration_end raised ValueError: no such thing"
    assert isinstance(caught.value.__cause__, ValueError)
    assert (run.status, run.error, run.timesteps) == ("crashed", error, 3 * 32)
    assert "ValueError: no such thing" in Path("run/error.txt").read_text()
    assert "Traceback" in Path("run/error.txt").read_text()
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["stopped_by"], summary["error"], summary["iterations"]) == ("error", error, 3)
    assert resume("run").summary["error"] is None
    assert read_run("run").status == "finished"
    assert not Path("run/error.txt").exists()


def test_a_resumed_run_that_is_killed_is_listed_as_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as what it was before: the summary of its first part goes away when the second begins."""

    class KilledBeforeItEnds(RunRecorder):
        def summarise(self, *_: Any, **__: Any) -> None:
            raise SystemExit

        def _record_error(self, error: BaseException) -> None:
            pass

    train("a2c", **SMALL, iterations=2, run_dir="run")
    monkeypatch.setattr("raceway.training.train.RunRecorder", KilledBeforeItEnds)
    with pytest.raises(SystemExit):
        resume("run", iterations=3)
    assert read_run("run").status == "killed"


class BrokenEnv(CartPoleEnv):
    """Fails in its first step."""

    def step(self, action: Any) -> Any:
        raise RuntimeError("broken")


class EnvWithThing(CartPoleEnv):
    """Takes an argument."""

    def __init__(self, thing: Any) -> None:
        super().__init__()


class FailsAtStart(Callback):
    """Raises before anything is trained, as an engine does that cannot start."""

    def on_train_start(self, run: Any) -> None:
        assert (run.directory / "config.json").exists()
        raise ConfigError("the cluster refused the connection")


def test_a_failed_start_leaves_no_run_directory() -> None:
    with pytest.raises(CallbackError, match=r"callback FailsAtStart.on_train_start raised ConfigError: .* refused"):
        train("a2c", **SMALL, iterations=2, callbacks=[FailsAtStart()])
    assert not Path("runs").exists()
    with pytest.raises(CallbackError, match=r"callback FailsAtStart.on_train_start raised ConfigError: .* refused"):
        train_seeds("a2c", [0, 1], make_callbacks=lambda: [FailsAtStart()], **SMALL, iterations=2)
    assert not Path("runs").exists()


def test_a_failure_while_the_recording_starts_leaves_no_run_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    train("a2c", **SMALL, iterations=1, run_dir="earlier")

    def fail(*_: Any) -> None:
        raise ConfigError("TensorBoard metrics need tensorboardX")

    monkeypatch.setattr("raceway.runs.recorder.TensorBoardWriter", fail)
    with pytest.raises(ConfigError, match="tensorboardX"):
        train("a2c", **SMALL, iterations=2)
    assert not Path("runs").exists()
    with pytest.raises(ConfigError, match="tensorboardX"):
        resume("earlier", iterations=2)
    assert read_run("earlier").status == "finished"


def test_settings_that_cannot_be_saved_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"env_kwargs cannot be saved in config\.json: keys must be str"):
        train("a2c", **SMALL | {"env": EnvWithThing, "env_kwargs": {"thing": {(1, 2): 3}}}, iterations=1)
    assert not Path("runs").exists()


def test_an_environment_that_always_fails_leaves_no_run_directory() -> None:
    with pytest.raises(OperatorError, match="broken"):
        train("a2c", **SMALL | {"env": BrokenEnv, "max_env_failures": 1}, iterations=2)
    assert not Path("runs").exists()


def test_the_error_of_an_environment_is_recorded_rather_than_that_of_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    class BreakAfterFirstIteration(Callback):
        def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
            monkeypatch.setattr(CartPoleEnv, "step", BrokenEnv.step)

    settings = SMALL | {"env": CartPoleEnv, "max_env_failures": 2}
    with pytest.raises(OperatorError, match="broken"):
        train("a2c", **settings, iterations=2, run_dir="run", callbacks=[BreakAfterFirstIteration()])
    assert read_run("run").error == "EnvironmentFailed: environment step raised RuntimeError: broken"
    assert json.loads(Path("run/summary.json").read_text())["env_failures"] == 3


def test_a_failed_resume_leaves_the_run_as_it_was() -> None:
    train("a2c", **SMALL, iterations=2, run_dir="run")
    with pytest.raises(CallbackError, match=r"callback FailsAtStart.on_train_start raised ConfigError: .* refused"):
        resume("run", iterations=4, callbacks=[FailsAtStart()])
    assert read_run("run").status == "finished"
    assert resume("run", iterations=4).summary["iterations"] == 4
