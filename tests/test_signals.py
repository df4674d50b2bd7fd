"""Signals: the first stops a run after the current step and saves it, the second interrupts it."""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from raceway.checkpoints import saver as saver_module
from raceway.checkpoints.saver import Saver
from raceway.checkpoints.store import Checkpoints
from raceway.rollouts.evaluation import Evaluator
from raceway.runs.metrics_file import read_metrics
from raceway.signals import StopSignals
from raceway.training import train as train_module
from raceway.training.train import resume, train
from raceway.ui.callback import Callback
from tests.conftest import GENEROUS, eventually

SETTINGS: dict[str, Any] = {"env": "cartpole", "engine": "inline", "num_envs": 4, "num_shards": 2, "seed": 3}


@pytest.fixture(autouse=True)
def _run_in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


class ActAfter(Callback):
    """Calls a function after an iteration."""

    def __init__(self, iteration: int, act: Callable[[], object]) -> None:
        self.number, self.act = iteration, act

    def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
        if row["time/iterations"] == self.number:
            self.act()


def set_timeout(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(train_module, "StopSignals", partial(StopSignals, timeout=seconds))


def latest_checkpoint(run: str = "run") -> Any:
    return Checkpoints(Path(run) / "checkpoints").find("latest")


@pytest.mark.parametrize(
    ("number", "reason", "code"), [(signal.SIGINT, "interrupt", 130), (signal.SIGTERM, "terminated", 143)]
)
def test_the_second_signal_interrupts(number: int, reason: str, code: int) -> None:
    with StopSignals(timeout=1e6) as signals:
        send(number)
        assert signals.reason == reason
        with pytest.raises(KeyboardInterrupt) as caught:
            send(signal.SIGTERM)
        assert caught.value.args == (code,)


def test_the_timeout_interrupts() -> None:
    with StopSignals(timeout=0.05) as signals:
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait(GENEROUS)
    assert signals.reason == "terminated"


def test_without_timeout_only_a_second_signal_interrupts() -> None:
    with StopSignals(timeout=0.05) as signals, signals.without_timeout():
        send(signal.SIGTERM)
        assert eventually(lambda: signals._timer.finished.is_set() and not signals._timed_out)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)


def test_the_previous_handlers_are_restored() -> None:
    previous = signal.getsignal(signal.SIGINT)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != previous
    assert signal.getsignal(signal.SIGINT) == previous


def test_a_second_signal_ends_a_run_without_saving_it() -> None:
    def send_twice() -> None:
        send(signal.SIGTERM)
        send(signal.SIGINT)

    result = train("ppo", run_dir="run", iterations=100, callbacks=[ActAfter(3, send_twice)], **SETTINGS)
    assert result.summary["stopped_by"] == "terminated"
    assert result.summary["iterations"] == 3
    assert result.summary["checkpoint"] == str(latest_checkpoint().path)
    assert latest_checkpoint().steps == 0


@pytest.mark.parametrize("last", [False, True])
def test_a_signal_does_not_interrupt_saving(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving may take longer than the timeout. The run stops afterwards, even if it had iterations left."""
    set_timeout(monkeypatch, 0.05)
    original = Checkpoints.save

    def save(self: Checkpoints, state: Any, about: Any) -> Any:
        if about["steps"]:
            send(signal.SIGTERM)
            (timer,) = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
            timer.join(GENEROUS)
            time.sleep(0)  # lets the interpreter handle signals
        return original(self, state, about)

    monkeypatch.setattr(Checkpoints, "save", save)
    settings = {"iterations": 2} if last else {"iterations": 100, "save_every": 1}
    result = train("ppo", run_dir="run", **settings, **SETTINGS)
    assert result.summary["iterations"] == (2 if last else 1)
    assert result.summary["stopped_by"] == ("iterations" if last else "terminated")
    assert latest_checkpoint().about["iterations"] == result.summary["iterations"]


def test_an_interrupted_evaluation_is_repeated_on_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resumed run ends as if it had not been stopped."""
    settings = {**SETTINGS, "eval_every": 300, "eval_episodes": 3, "fragment_steps": 32, "metrics_interval": 0.0}
    uninterrupted = train("ppo", run_dir="uninterrupted", iterations=9, **settings)
    set_timeout(monkeypatch, 1e6)
    original, count = Evaluator._step, iter(range(10**9))

    def step(self: Evaluator, active: list[int]) -> list[int]:
        if next(count) == 20:
            send(signal.SIGINT)
        return original(self, active)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "_step", step)
        stopped = train("ppo", run_dir="run", iterations=9, **settings)
    assert stopped.summary["stopped_by"] == "interrupt"
    assert stopped.summary["iterations"] == 3
    assert latest_checkpoint().about["iterations"] == 3
    assert "eval/mean_reward" not in read_metrics("run")[-1]
    resumed = resume("run")
    assert resumed.summary["state_sha256"] == uninterrupted.summary["state_sha256"]
    rewards = [[row.get("eval/mean_reward") for row in read_metrics(run)] for run in ("run", "uninterrupted")]
    assert rewards[0] == rewards[1]
    assert len(resumed.metrics) == 9
    assert resumed.returns == uninterrupted.returns
    best = [Checkpoints(Path(run) / "checkpoints").best() for run in ("run", "uninterrupted")]
    assert len({checkpoint and checkpoint.about["score"] for checkpoint in best}) == 1


class HangingCartPole(CartPoleEnv):
    """Sends SIGTERM to the driver and then hangs, at the step and to the pid that a file names; once, if it exists."""

    def __init__(self, note: str) -> None:
        super().__init__()
        self.note, self.steps = Path(note), 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.note.exists():
            at, pid = map(int, self.note.read_text().split())
            if self.steps >= at:
                self.note.unlink()
                os.kill(pid, signal.SIGTERM)
                threading.Event().wait(GENEROUS)
        return super().step(action)


HANGING_RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "reinforce": ({"episodes_per_iter": 8, "iterations": 8}, 150),
    "a2c": ({"fragment_steps": 8, "iterations": 8}, 30),
    "ppo": ({"fragment_steps": 16, "iterations": 6}, 40),
    "dqn": ({"iterations": 30}, 20),
}
"""By algorithm: settings, and an environment step that is neither in the first iteration nor in the last."""


@pytest.mark.parametrize(
    ("algorithm", "first", "engine"),
    [(algorithm, False, "process") for algorithm in HANGING_RUNS]
    + [("ppo", True, "process"), ("ppo", True, "inline"), ("a2c", False, "inline")],
)
def test_a_long_iteration_is_interrupted_and_the_run_resumes_before_it(
    algorithm: str, first: bool, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also in the first iteration. The resumed run ends as if it had not been stopped."""
    monkeypatch.setattr(saver_module, "LONG_ITERATION_SECONDS", 0.0)
    monkeypatch.setattr(saver_module, "STARTUP_SECONDS", 0.0)
    monkeypatch.setattr(saver_module, "MAX_SAVE_SHARE", 1e6)
    set_timeout(monkeypatch, 0.05)
    options, step = HANGING_RUNS[algorithm]
    settings = {**SETTINGS, "env": partial(HangingCartPole, str(tmp_path / "note")), "engine": engine, **options}
    settings |= {"num_workers": 1} if engine == "process" else {}
    uninterrupted = train(algorithm, run_dir="uninterrupted", **settings)
    (tmp_path / "note").write_text(f"{1 if first else step} {os.getpid()}")
    stopped = train(algorithm, run_dir="run", **settings)
    assert stopped.summary["stopped_by"] == "terminated"
    assert latest_checkpoint().about["iterations"] == stopped.summary["iterations"] < settings["iterations"]
    assert (stopped.summary["iterations"] == 0) == first
    resumed = resume("run", env=settings["env"])
    assert resumed.summary["state_sha256"] == uninterrupted.summary["state_sha256"]
    assert resumed.returns == uninterrupted.returns


def test_long_iterations_are_saved_while_saving_costs_little(tmp_path: Path) -> None:
    now = [0.0]
    saver = Saver(Checkpoints(tmp_path), None, 0, lambda: now[0])

    def after(seconds: float, cost: float | None = None) -> bool:
        now[0] += seconds
        due = saver.due(round(1000 * now[0]))
        if due and cost is not None:
            saver.save(lambda: now.__setitem__(0, now[0] + cost) or {}, {"steps": round(1000 * now[0])})
        return due

    assert not after(5.9), "the start of the workers is not counted"
    assert not after(1.9)
    assert after(2.1, cost=0.01)
    assert not after(1.9), "the time to save is not part of an iteration"
    assert after(2.1, cost=1.0)
    assert not after(40.0), "saving would take more than 2 % of the time"
    assert after(10.1)
