"""Signals: the first lets what is under way come to its end and saves it, the second ends it."""

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
from raceway.rollouts.evaluation import Player
from raceway.runs.directory import read_metrics
from raceway.signals import StopSignals
from raceway.training import train as module
from raceway.training.train import resume, train
from raceway.ui.display import Watcher
from tests.conftest import GENEROUS, eventually

SETTINGS: dict[str, Any] = {"env": "cartpole", "engine": "inline", "num_envs": 4, "num_shards": 2, "seed": 3}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


class At(Watcher):
    """Does something after an iteration."""

    def __init__(self, iteration: int, act: Callable[[], object]) -> None:
        self.number, self.act = iteration, act

    def iteration(self, row: dict[str, Any]) -> None:
        if row["time/iterations"] == self.number:
            self.act()


def impatient(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(module, "StopSignals", partial(StopSignals, patience=seconds))


def saved(run: str = "run") -> Any:
    return Checkpoints(Path(run) / "checkpoints").find("latest")


@pytest.mark.parametrize(
    ("number", "reason", "code"), [(signal.SIGINT, "interrupt", 130), (signal.SIGTERM, "terminated", 143)]
)
def test_the_second_signal_interrupts(number: int, reason: str, code: int) -> None:
    with StopSignals(patience=1e6) as signals:
        send(number)
        assert signals.reason == reason
        with pytest.raises(KeyboardInterrupt) as caught:
            send(signal.SIGTERM)
        assert caught.value.args == (code,)


def test_when_patience_runs_out_what_is_under_way_is_interrupted() -> None:
    with StopSignals(patience=0.05) as signals:
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait(GENEROUS)
    assert signals.reason == "terminated"


def test_what_is_unhurried_ends_by_a_second_signal_only() -> None:
    with StopSignals(patience=0.05) as signals, signals.unhurried():
        send(signal.SIGTERM)
        assert eventually(lambda: signals._timer.finished.is_set() and not signals._overdue)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)


def test_before_and_afterwards_signals_are_what_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_a_second_signal_ends_a_run_without_another_checkpoint() -> None:
    def twice() -> None:
        send(signal.SIGTERM)
        send(signal.SIGINT)

    result = train("ppo", run_dir="run", iterations=100, watchers=[At(3, twice)], **SETTINGS)
    assert result.summary["stopped_by"] == "terminated"
    assert result.summary["iterations"] == 3
    assert result.summary["checkpoint"] == str(saved().path)
    assert saved().steps == 0


@pytest.mark.parametrize("last", [False, True])
def test_a_signal_while_it_is_saved_does_not_cut_that_short(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes; and a run that was to go on does not."""
    impatient(monkeypatch, 0.05)
    original = Checkpoints.save

    def save(self: Checkpoints, state: Any, about: Any) -> Any:
        if about["steps"]:
            send(signal.SIGTERM)
            (timer,) = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
            timer.join(GENEROUS)
            time.sleep(0)  # the interpreter looks for signals
        return original(self, state, about)

    monkeypatch.setattr(Checkpoints, "save", save)
    settings = {"iterations": 2} if last else {"iterations": 100, "save_every": 1}
    result = train("ppo", run_dir="run", **settings, **SETTINGS)
    assert result.summary["iterations"] == (2 if last else 1)
    assert result.summary["stopped_by"] == ("iterations" if last else "terminated")
    assert saved().about["iterations"] == result.summary["iterations"]


def test_an_evaluation_is_given_up_for_a_signal_and_made_up_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the run ends as if it had not been stopped."""
    settings = {**SETTINGS, "eval_every": 300, "eval_episodes": 3, "fragment_steps": 32}
    whole = train("ppo", run_dir="whole", iterations=9, **settings)
    impatient(monkeypatch, 1e6)
    step, count = Player._step, iter(range(10**9))

    def stepped(self: Player, active: list[int]) -> list[int]:
        if next(count) == 20:
            send(signal.SIGINT)
        return step(self, active)

    with monkeypatch.context() as patch:
        patch.setattr(Player, "_step", stepped)
        stopped = train("ppo", run_dir="run", iterations=9, **settings)
    assert stopped.summary["stopped_by"] == "interrupt"
    assert stopped.summary["iterations"] == 3
    assert saved().about["iterations"] == 3
    assert "eval/mean_reward" not in read_metrics("run")[-1]
    again = resume("run")
    assert again.summary["state_sha256"] == whole.summary["state_sha256"]
    evaluated = [[row.get("eval/mean_reward") for row in read_metrics(run)] for run in ("run", "whole")]
    assert evaluated[0] == evaluated[1]
    assert len(again.metrics) == 9
    assert again.returns == whole.returns
    scores = [Checkpoints(Path(run) / "checkpoints").best() for run in ("run", "whole")]
    assert len({one and one.about["score"] for one in scores}) == 1


class Holds(CartPoleEnv):
    """Has a run stopped in its nth step, and does not come to an end by itself, if a file says so."""

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


HELD: dict[str, tuple[dict[str, Any], int]] = {
    "reinforce": ({"episodes_per_iter": 8, "iterations": 8}, 150),
    "a2c": ({"fragment_steps": 8, "iterations": 8}, 30),
    "ppo": ({"fragment_steps": 16, "iterations": 6}, 40),
    "dqn": ({"iterations": 30}, 20),
}
"""Of algorithms, settings and a step that is neither in their first iteration nor in the last."""


@pytest.mark.parametrize("engine", ["inline", "process"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("algorithm", HELD)
def test_a_long_iteration_is_given_up_and_what_was_before_it_is_saved(
    algorithm: str, first: bool, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Be it the first; and the run ends as if it had not been stopped."""
    monkeypatch.setattr(saver_module, "LONG", 0.0)
    monkeypatch.setattr(saver_module, "START", 0.0)
    monkeypatch.setattr(saver_module, "SHARE", 1e6)
    impatient(monkeypatch, 0.05)
    some, at = HELD[algorithm]
    settings = {**SETTINGS, "env": partial(Holds, str(tmp_path / "note")), "engine": engine, **some}
    settings |= {"num_workers": 1} if engine == "process" else {}
    whole = train(algorithm, run_dir="whole", **settings)
    (tmp_path / "note").write_text(f"{1 if first else at} {os.getpid()}")
    stopped = train(algorithm, run_dir="run", **settings)
    assert stopped.summary["stopped_by"] == "terminated"
    assert saved().about["iterations"] == stopped.summary["iterations"] < settings["iterations"]
    assert (stopped.summary["iterations"] == 0) == first
    again = resume("run", env=settings["env"])
    assert again.summary["state_sha256"] == whole.summary["state_sha256"]
    assert again.returns == whole.returns


def test_a_long_iteration_is_saved_as_long_as_that_costs_little(tmp_path: Path) -> None:
    now = [0.0]
    saver = Saver(Checkpoints(tmp_path), None, 0, lambda: now[0])

    def after(seconds: float, cost: float | None = None) -> bool:
        now[0] += seconds
        due = saver.due(round(1000 * now[0]))
        if due and cost is not None:
            saver.save(lambda: now.__setitem__(0, now[0] + cost) or {}, {"steps": round(1000 * now[0])})
        return due

    assert not after(5.9), "workers have started meanwhile"
    assert not after(1.9)
    assert after(2.1, cost=0.01)
    assert not after(1.9), "what the checkpoint took is no part of an iteration"
    assert after(2.1, cost=1.0)
    assert not after(40.0), "it would take more than 2 % of the time"
    assert after(10.1)
