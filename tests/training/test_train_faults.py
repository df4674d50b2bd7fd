"""Training goes on when workers are killed, hang or run out of memory, and when environments raise, in every way."""

import ctypes
import dataclasses
import logging
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from raceway.algorithms import algorithm_names, find_algorithm
from raceway.checkpoints.store import Checkpoints
from raceway.errors import ActorDied, OperatorError, ShardFailed
from raceway.ops import ReplayShard
from raceway.runs.recorder import Result
from raceway.training.train import Training, resume, train
from raceway.ui.display import Callback
from tests.flaky_envs import flaky_cartpole

SMALL: dict[str, Any] = {
    "num_envs": 4, "num_shards": 2, "fragment_steps": 4, "hidden": (8,), "iterations": 6, "num_workers": 2,
    "engine": "process",
}  # fmt: skip
AN_ITERATION = 16  # steps
HOURS = 10_000


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Unspeakable(Exception):
    """Says nothing about itself, and cannot travel."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> None:
    time.sleep(HOURS)


def holds_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(HOURS)


def runs_out_of_memory() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 26), limits[1]))
    try:
        np.ones(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def exits() -> None:
    raise SystemExit(3)


def cannot_travel() -> None:
    raise Unspeakable(1, 2)


def waits() -> None:
    with open("gate", "rb"):  # a pipe, which somebody must open at the other end
        pass


class Trouble(gym.Env[Any, Any]):
    """Something happens in one of its methods, so many times in all workers together, but never in the driver.

    Args:
        where: `init`, `reset`, `step` or `close`.
        what: names of the functions above, of which each has its turn.
        times: that it happens in all; as many as there are of them, if it is not said.
    """

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    driver = 0

    def __init__(self, where: str, what: tuple[str, ...], times: int | None = None) -> None:
        self._where, self._what, self._times = where, what, len(what) if times is None else times
        self._at("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed != 0:  # with which it is looked at when it is made
            self._at("reset")
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 3:
            self._at("step")
        return self._seen(), 1.0, self._steps == 7, False, {}

    def close(self) -> None:
        self._at("close")

    def _seen(self) -> Any:
        return self.np_random.random(2, np.float32)

    def _at(self, where: str) -> None:
        if where != self._where or os.getpid() == int(os.environ["DRIVER"]):
            return
        for number in range(self._times):
            try:
                os.close(os.open(f"happened-{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            happens: Callable[[], None] = globals()[self._what[number % len(self._what)]]
            happens()
            return


@pytest.fixture(autouse=True)
def _the_driver_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER", str(os.getpid()))


def happened() -> int:
    return len(list(Path().glob("happened-*")))


def trained(algorithm: str, where: str, *what: str, times: int | None = None, **settings: Any) -> Result:
    kwargs = {"where": where, "what": what, "times": times}
    return train(algorithm, env=Trouble, env_kwargs=kwargs, **{**SMALL, **settings})


def steps_of(result: Result) -> list[int]:
    totals = [row["time/total_timesteps"] for row in result.metrics]
    return np.diff(totals, prepend=0).tolist()


def times_restarted(caplog: pytest.LogCaptureFixture, why: str) -> int:
    return sum("restarted: " in line and why in line for line in caplog.text.splitlines())


# Workers that die.


@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_worker_that_is_killed_in_the_middle_of_a_rollout(
    algorithm: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every iteration has its samples all the same, and the run says what happened."""
    more = {"num_minibatches": 2} if algorithm == "ppo" else {}
    result = trained(algorithm, where, "killed", **more)
    assert happened() == 1
    assert steps_of(result) == [AN_ITERATION] * 6
    assert result.summary["stopped_by"] == "iterations"
    assert times_restarted(caplog, "SIGKILL") == 1
    assert "rollout/env_failures" not in result.metrics[-1]


class Kills(Callback):
    """Kills the first worker that lives after every iteration, so many times."""

    def __init__(self, num: int) -> None:
        self.num, self.killed = num, 0

    def on_start(self, training: Any, path: Path) -> None:
        spawn = training._spawn

        def spawned(engine: Any) -> Any:
            self.workers = spawn(engine)
            return self.workers

        training._spawn = spawned

    def on_iteration(self, row: dict[str, Any]) -> None:
        for worker in self.workers if self.killed < self.num else ():
            try:
                os.kill(worker.call("pid").result(60), signal.SIGKILL)
            except ActorDied:  # it has not come back yet
                continue
            self.killed += 1
            return


@pytest.mark.parametrize("algorithm", ["a2c", "a3c", "impala"])
def test_kills_all_the_time(algorithm: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost or counted twice: an iteration is a round of all shards, or of an asynchronous one a fragment."""
    kills = Kills(5)
    result = train(algorithm, env="Pendulum-v1", callbacks=[kills], **{**SMALL, "iterations": 16})
    assert kills.killed == 5
    assert steps_of(result) == [AN_ITERATION if algorithm == "a2c" else AN_ITERATION // 2] * 16
    assert times_restarted(caplog, "SIGKILL") >= 4  # the last may come too late to be noticed


@pytest.mark.parametrize("name", algorithm_names())
def test_every_algorithm_bears_kills(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """And says how often workers were restarted."""
    found, kills = find_algorithm(name), Kills(3)
    known = {one.name for one in dataclasses.fields(found.config)}
    small = {"episodes_per_iter": 4, "num_minibatches": 2, "learning_starts": 32, "batch_size": 16, **SMALL}
    settings = {setting: value for setting, value in small.items() if setting in known} | {"iterations": 14}
    result = train(name, env=found.config.env, callbacks=[kills], **settings)
    assert kills.killed == 3
    assert result.summary["iterations"] == 14
    assert "train/loss" in result.metrics[-1]
    assert result.metrics[-1]["rollout/worker_restarts"] == times_restarted(caplog, "SIGKILL") >= 2
    if name in ("a2c", "ppo", "maml"):
        assert len(set(steps_of(result))) == 1, "every iteration has its samples"
    if name == "reinforce":
        assert [len(row["returns"]) for row in result.metrics] == [4] * 14


class DiesOnArrival:
    """Makes an environment, but kills the worker in which it arrives, the first time."""

    __name__ = "DiesOnArrival"

    def __init__(self) -> None:
        self.made = "Pendulum-v1"

    def __call__(self) -> gym.Env[Any, Any]:
        return gym.make(self.made)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() != int(os.environ["DRIVER"]):
            try:
                os.close(os.open("happened-0", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            killed()


def test_a_worker_that_is_killed_while_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    result = train("a2c", env=DiesOnArrival(), **SMALL)
    assert happened() == 1
    assert steps_of(result) == [AN_ITERATION] * 6
    assert times_restarted(caplog, "SIGKILL") == 1


def test_workers_that_die_again_and_again_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """As those do that the kernel kills for want of memory: each is restarted three times, and not for ever."""
    with pytest.raises(ShardFailed, match=r"restart budget is used up.*SIGKILL") as raised:
        trained("a2c", "step", "killed", times=1000, max_restarts=3)
    assert 4 <= happened() <= 8
    assert "rollouts-" in str(raised.value)
    assert 3 <= times_restarted(caplog, "SIGKILL") <= 7


# Workers that hang.


@pytest.mark.parametrize("how", ["hangs", "holds_the_interpreter"])
def test_a_worker_that_hangs_is_killed_at_its_deadline(how: str, caplog: pytest.LogCaptureFixture) -> None:
    result = trained("a2c", "step", how, item_deadline=6.0)
    assert happened() == 1
    assert steps_of(result) == [AN_ITERATION] * 6
    assert times_restarted(caplog, "ran for more than 6 s") == 1


class Opens(Callback):
    """Lets go the environment that waits, after so many iterations."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_iteration(self, row: dict[str, Any]) -> None:
        if row["time/iterations"] == self.after:
            with open("gate", "wb"):
                pass


@pytest.mark.parametrize("algorithm", ["a3c", "impala"])
def test_a_slow_worker_holds_up_nobody(algorithm: str, caplog: pytest.LogCaptureFixture) -> None:
    """One waits until the other has brought eight fragments; then it goes on too."""
    os.mkfifo("gate")
    kwargs = {"where": "step", "what": ("waits",)}
    settings = {**SMALL, "iterations": 12, "item_deadline": 120.0}
    result = train(algorithm, env=Trouble, env_kwargs=kwargs, callbacks=[Opens(8)], **settings)
    assert happened() == 1
    assert steps_of(result) == [AN_ITERATION // 2] * 12
    assert times_restarted(caplog, "") == 0


# Environments that raise.


@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_whatever_an_environment_raises_is_borne(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """And told by the worker: type, place, and the traceback from there."""
    kinds = ("exits", "cannot_travel", "runs_out_of_memory") if where != "close" else ("exits", "cannot_travel")
    with caplog.at_level(logging.WARNING):
        result = trained("a2c", where, *kinds)
    if where == "close":  # as nothing else goes wrong, there is only the end
        assert result.summary["stopped_by"] == "iterations"
        return
    assert happened() == 3
    assert result.metrics[-1]["rollout/env_failures"] == 3
    counted = result.summary["timesteps"]
    assert counted == 6 * AN_ITERATION - (3 if where == "step" else 0)
    verb = {"init": "making"}.get(where, where)
    for name in ("SystemExit: 3", "Unspeakable: (no message: RuntimeError)", "MemoryError"):
        assert f"{verb} of the environment raised {name}" in caplog.text.replace("_ArrayMemoryError", "MemoryError")
    assert "in worker rollouts-" in caplog.text
    assert "in cannot_travel" in caplog.text
    assert times_restarted(caplog, "") == 0


def test_an_environment_that_always_fails_ends_the_run() -> None:
    with pytest.raises(OperatorError) as raised:
        trained("a2c", "step", "cannot_travel", times=1000, max_env_failures=2)
    text = str(raised.value)
    assert "step of the environment raised Unspeakable: (no message: RuntimeError)" in text
    assert "failure 3 in a row with no episode ended in between (max_env_failures is 2)" in text
    assert "in cannot_travel" in text


@pytest.mark.parametrize("algorithm", ["reinforce", "maml"])
def test_whole_episodes_stay_as_many(algorithm: str) -> None:
    if algorithm == "maml":
        settings: dict[str, Any] = {"env": FailingPoint, "num_shards": 2, "num_envs": 4, "iterations": 2}
        result = train("maml", engine="inline", hidden=(8,), **settings)
        assert len(result.returns) == 8  # of those after adapting
    else:
        settings = {"iterations": 3, "episodes_per_iter": 8, "num_envs": 4, "num_shards": 2}
        kwargs = {"where": "step", "what": ("exits",), "times": 5}
        result = train("reinforce", env=Trouble, env_kwargs=kwargs, num_workers=2, engine="process", **settings)
        assert result.summary["episodes"] == 24
        assert result.summary["timesteps"] == 24 * 7
        assert result.metrics[-1]["rollout/env_failures"] == 5


class FailingPoint(gym.Wrapper[Any, Any, Any, Any]):
    """Fails in every seventh episode of all environments."""

    num_begun = 0

    def __init__(self) -> None:
        super().__init__(gym.make("PointGoals-v0", max_episode_steps=5))

    def reset(self, **settings: Any) -> Any:
        FailingPoint.num_begun += 1
        self.fails = FailingPoint.num_begun % 7 == 0
        return super().reset(**settings)

    def step(self, action: Any) -> Any:
        if self.fails:
            raise RuntimeError("the simulator broke down")
        return super().step(action)


# What no policy can use never gets any further.


class Poison(gym.Env[Any, Any]):
    """Gives NaN in one way or another in every episode after the first ones."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    num_begun = 0
    every = 1

    def __init__(self, what: str) -> None:
        self._what = what

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        Poison.num_begun += 1
        self._steps = 0
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        seen: Any = self.np_random.random(2, np.float32)
        reward: Any = 1.0
        if Poison.num_begun > 30 and Poison.num_begun % self.every == 0 and self._steps == 3:
            seen = {"nan": seen * np.nan, "shape": seen[:1], "type": {"x": 1}}.get(self._what, seen)
            reward = {"reward": np.nan, "text": "much"}.get(self._what, reward)
        return seen, reward, self._steps == 5, False, {}


class Keeps(Callback):
    """Keeps the state of the learner as it is after every iteration."""

    def on_start(self, training: Training, path: Path) -> None:
        self.training = training

    def on_iteration(self, row: dict[str, Any]) -> None:
        self.state = self.training.learner.state()


POISONS = ["nan", "shape", "type", "reward", "text"]


@pytest.mark.parametrize("what", POISONS)
def test_what_cannot_be_used_changes_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, normalisers and the optimiser are bit by bit what they were before it came."""
    monkeypatch.setattr(Poison, "num_begun", 0)
    keeps = Keeps()
    settings = {"normalise_obs": True, "scale_rewards": True, "num_minibatches": 2, "max_env_failures": 3}
    with pytest.raises(OperatorError, match="failure 4 in a row"):
        train(
            "ppo", env=Poison, env_kwargs={"what": what}, callbacks=[keeps],
            **{**SMALL, **settings, "engine": "inline", "num_workers": 1, "iterations": 100},
        )  # fmt: skip
    np.testing.assert_equal(keeps.training.learner.state(), keeps.state)
    assert keeps.training.report.iterations > 1


@pytest.mark.parametrize("what", POISONS)
def test_what_cannot_be_used_is_not_stored(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Poison, "num_begun", 0)
    monkeypatch.setattr(Poison, "every", 5)
    stored = []

    def insert(shard: ReplayShard, batch: Any) -> Any:
        stored.append(batch)
        return before(shard, batch)

    before = ReplayShard.insert
    monkeypatch.setattr(ReplayShard, "insert", insert)
    settings = {"engine": "inline", "num_workers": 1, "iterations": 60, "learning_starts": 16, "buffer_size": 500}
    result = train("dqn", env=Poison, env_kwargs={"what": what}, **{**SMALL, **settings})
    assert result.metrics[-1]["rollout/env_failures"] > 3
    for batch in stored:
        for name in ("obs", "next_obs", "reward", "discount"):
            assert np.isfinite(batch[name]).all()
    assert all(np.isfinite(array).all() for array in result.policy.weights().values())


# All of it by chance.

STEPS_UNDISTURBED = 86_016
"""That PPO takes with this seed to a mean return of 475, in the same environment without crashes."""


def test_it_learns_in_environments_that_crash_now_and_then() -> None:
    preset = find_algorithm("ppo").presets["CartPole-v1"]
    result = train("ppo", env=flaky_cartpole, engine="inline", seed=1, stop_return=475.0, **preset)
    assert result.summary["stopped_by"] == "stop_return"
    assert result.summary["timesteps"] <= 1.3 * STEPS_UNDISTURBED
    assert result.metrics[-1]["rollout/env_failures"] > 3


def test_a_worker_that_hangs_while_it_is_asked_for_its_state() -> None:
    """It is killed at the deadline, as one that hangs while it plays. There is no checkpoint then; training goes on."""

    class Hangs(Training):
        def _spawn(self, engine: Any) -> Any:
            self.workers = super()._spawn(engine)
            return self.workers

        def _save(self, run: Any) -> None:
            if self.report.iterations == 2:
                os.kill(self.workers[0].call("pid").result(), signal.SIGSTOP)
            super()._save(run)

    found = find_algorithm("a2c")
    some = {"env": "cartpole", "engine": "process", "num_workers": 1, "num_envs": 4, "num_shards": 1, "run_dir": "run"}
    training = Hangs(found, found.settings(iterations=4, save_every=1, item_deadline=2.0, **some))
    assert training.run().summary["iterations"] == 4
    assert [one.about["iterations"] for one in Checkpoints("run/checkpoints").all()] == [1, 3, 4]
    assert training.result.metrics[-1]["rollout/worker_restarts"] == 1


class Slow(CartPoleEnv):
    """Takes a while over every step, and never ends."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        self.state = np.zeros(4)
        return super().step(action)


def test_bringing_an_environment_back_may_take_longer_than_an_item() -> None:
    settings = {"engine": "process", "num_workers": 1, "item_deadline": 2.0, "max_restarts": 1}
    train("a2c", env=Slow, num_envs=1, num_shards=1, fragment_steps=10, iterations=40, run_dir="run", **settings)
    result = resume("run", env=Slow, iterations=42)
    assert result.summary["iterations"] == 42
    assert "rollout/worker_restarts" not in result.metrics[-1]
