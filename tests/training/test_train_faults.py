"""Training continues when workers are killed, hang or run out of memory, and when environments raise."""

import ctypes
import dataclasses
import logging
import math
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
from raceway.engine.base import Actor
from raceway.errors import ActorDied, OperatorError, ShardFailed
from raceway.ops import ReplayShard
from raceway.runs.recorder import Result
from raceway.training.train import Training, resume, train
from raceway.ui.callback import Callback
from tests.catalogue.small_settings import UNUSED
from tests.flaky_envs import flaky_cartpole

SMALL: dict[str, Any] = {
    "num_envs": 4, "num_shards": 2, "fragment_steps": 4, "hidden": (8,), "iterations": 6, "num_workers": 2,
    "engine": "process", "metrics_interval": 0.0,
}  # fmt: skip
STEPS_PER_ITERATION = 16
SINGLE_FRAGMENTS = {"impala": {"batch_steps": STEPS_PER_ITERATION // 2}}
"""Settings with which every update is computed from one fragment."""
HOURS = 10_000  # seconds


@pytest.fixture(autouse=True)
def _in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Unpicklable(Exception):
    """An error that has no text and cannot be pickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(HOURS)


def hang_with_interpreter_lock() -> None:
    ctypes.PyDLL(None).sleep(HOURS)


def run_out_of_memory() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), limits[1]))
    try:
        np.ones(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def exit_process() -> None:
    raise SystemExit(3)


def raise_unpicklable() -> None:
    raise Unpicklable(1, 2)


def wait_at_gate() -> None:
    with open("gate", "rb"):  # a pipe: opening it blocks until the other end is opened
        pass


class FaultyEnv(gym.Env[Any, Any]):
    """Injects faults into one of its methods, a fixed number of times over all workers, but never in the driver.

    Args:
        where: `init`, `reset`, `step` or `close`.
        faults: names of the functions above, used in turn.
        times: total number of faults; the length of `faults` by default.
    """

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    driver = 0

    def __init__(self, where: str, faults: tuple[str, ...], times: int | None = None) -> None:
        self._where, self._faults, self._times = where, faults, len(faults) if times is None else times
        self._inject("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed != 0:  # the seed with which a new environment is checked
            self._inject("reset")
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 3:
            self._inject("step")
        return self._observe(), 1.0, self._steps == 7, False, {}

    def close(self) -> None:
        self._inject("close")

    def _observe(self) -> Any:
        return self.np_random.random(2, np.float32)

    def _inject(self, where: str) -> None:
        if where != self._where or os.getpid() == int(os.environ["DRIVER"]):
            return
        for number in range(self._times):
            try:
                os.close(os.open(f"fault-{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            fault: Callable[[], None] = globals()[self._faults[number % len(self._faults)]]
            fault()
            return


@pytest.fixture(autouse=True)
def _driver_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER", str(os.getpid()))


def num_faults() -> int:
    return len(list(Path().glob("fault-*")))


def train_with_faults(algorithm: str, where: str, *faults: str, times: int | None = None, **settings: Any) -> Result:
    kwargs = {"where": where, "faults": faults, "times": times}
    return train(algorithm, env=FaultyEnv, env_kwargs=kwargs, **{**SMALL, **settings})


def steps_per_iteration(result: Result) -> list[int]:
    totals = [row["time/total_timesteps"] for row in result.metrics]
    return np.diff(totals, prepend=0).tolist()


def num_restarts(caplog: pytest.LogCaptureFixture, reason: str) -> int:
    return sum("restarted: " in line and reason in line for line in caplog.text.splitlines())


# Workers that die.


@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_worker_killed_during_a_rollout_is_restarted(
    algorithm: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every iteration still has all its samples, and the restart is logged, and counted once for all its shards."""
    more = {"num_minibatches": 2} if algorithm == "ppo" else {}
    result = train_with_faults(algorithm, where, "kill_process", num_shards=4, **more)
    assert num_faults() == 1
    assert steps_per_iteration(result) == [STEPS_PER_ITERATION] * 6
    assert result.summary["stopped_by"] == "iterations"
    assert 1 <= num_restarts(caplog, "SIGKILL") <= 2  # a line for each shard with a request at that instant
    assert result.summary["worker_restarts"] == result.metrics[-1]["rollout/worker_restarts"] == 1
    assert "rollout/env_failures" not in result.metrics[-1]


def wait_until_dead(worker: Actor) -> None:
    """Wait until the engine has noticed that a worker was killed: on a busy machine it may live on for a while."""
    try:
        while True:
            worker.call("pid").result(60)
    except ActorDied:
        return


class KillWorkers(Callback):
    """Kills the first living worker after every iteration, `num` times in all."""

    def __init__(self, num: int) -> None:
        self.num, self.num_killed = num, 0

    def on_train_start(self, run: Any) -> None:
        training = run.training
        spawn = training._spawn

        def spawn_and_record(engine: Any) -> Any:
            self.workers = spawn(engine)
            return self.workers

        training._spawn = spawn_and_record

    def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
        for worker in self.workers if self.num_killed < self.num else ():
            try:
                os.kill(worker.call("pid").result(60), signal.SIGKILL)
            except ActorDied:  # it is not restarted yet
                continue
            self.num_killed += 1
            wait_until_dead(worker)
            return


@pytest.mark.parametrize("algorithm", ["a2c", "a3c", "impala"])
def test_repeated_kills_lose_no_samples(algorithm: str, caplog: pytest.LogCaptureFixture) -> None:
    """An iteration is a round of all shards, or one fragment of an asynchronous algorithm."""
    killer = KillWorkers(5)
    settings = {**SMALL, "iterations": 16} | SINGLE_FRAGMENTS.get(algorithm, {})
    result = train(algorithm, env="Pendulum-v1", callbacks=[killer], **settings)
    assert killer.num_killed == 5
    assert steps_per_iteration(result) == [STEPS_PER_ITERATION if algorithm == "a2c" else STEPS_PER_ITERATION // 2] * 16
    assert num_restarts(caplog, "SIGKILL") >= 4  # the last kill may come too late to be noticed


@pytest.mark.parametrize("name", algorithm_names())
def test_every_algorithm_survives_kills(name: str, dataset_for: Callable[[str], str]) -> None:
    """Its summary counts the restarts; the last kill may come too late to be noticed."""
    algorithm, killer = find_algorithm(name), KillWorkers(3)
    fields = {field.name for field in dataclasses.fields(algorithm.config)}
    small = {"episodes_per_iter": 4, "num_minibatches": 2, "learning_starts": 32, "batch_size": 16, **SMALL}
    small |= {"dataset": dataset_for(name), "iterations": 14}
    small |= {"sequence_steps": 12, "burn_in": 4} if name == "r2d2" else {}
    settings = {setting: value for setting, value in small.items() if setting in fields - UNUSED.get(name, set())}
    result = train(name, env=algorithm.config.env, callbacks=[killer], **settings)
    assert killer.num_killed == 3
    assert result.summary["iterations"] == 14
    # The last iteration of an asynchronous algorithm may be one that only stores transitions.
    assert any(key.startswith("train/") and key.endswith("loss") for row in result.metrics for key in row)
    restarts = result.metrics[-1][f"{algorithm.source.metrics}/worker_restarts"]
    assert 2 <= restarts <= result.summary["worker_restarts"] <= 3
    if name in ("a2c", "ppo", "maml"):
        assert len(set(steps_per_iteration(result))) == 1, "every iteration has its samples"
    if name == "reinforce":
        assert [len(row["returns"]) for row in result.metrics] == [4] * 14


class KillsWhenUnpickled:
    """Creates an environment; the first worker that unpickles it is killed."""

    __name__ = "KillsWhenUnpickled"

    def __init__(self) -> None:
        self.env_id = "Pendulum-v1"

    def __call__(self) -> gym.Env[Any, Any]:
        return gym.make(self.env_id)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() != int(os.environ["DRIVER"]):
            try:
                os.close(os.open("fault-0", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            kill_process()


def test_a_worker_killed_while_starting_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    result = train("a2c", env=KillsWhenUnpickled(), **SMALL)
    assert num_faults() == 1
    assert steps_per_iteration(result) == [STEPS_PER_ITERATION] * 6
    assert num_restarts(caplog, "SIGKILL") == 1


def test_workers_that_die_repeatedly_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """As workers do that the kernel kills for lack of memory: each is restarted at most three times."""
    with pytest.raises(ShardFailed, match=r"restart budget is used up.*SIGKILL") as raised:
        train_with_faults("a2c", "step", "kill_process", times=1000, max_restarts=3)
    assert 4 <= num_faults() <= 8
    assert "rollouts-" in str(raised.value)
    assert 3 <= num_restarts(caplog, "SIGKILL") <= 7


# Workers that hang.


@pytest.mark.parametrize("fault", ["hang", "hang_with_interpreter_lock"])
def test_a_worker_that_hangs_is_killed_at_its_deadline(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    result = train_with_faults("a2c", "step", fault, item_deadline=6.0)
    assert num_faults() == 1
    assert steps_per_iteration(result) == [STEPS_PER_ITERATION] * 6
    assert num_restarts(caplog, "ran for more than 6 s") == 1


class OpenGate(Callback):
    """Releases the waiting environment after this many iterations."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
        if row["time/iterations"] == self.after:
            with open("gate", "wb"):
                pass


@pytest.mark.parametrize("algorithm", ["a3c", "impala"])
def test_a_slow_worker_does_not_delay_the_others(
    algorithm: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker waits until the other has collected eight fragments; then it continues."""
    # On a busy machine an iteration may be long. The save after it would wait for the slow worker.
    monkeypatch.setattr("raceway.checkpoints.saver.LONG_ITERATION_SECONDS", math.inf)
    os.mkfifo("gate")
    kwargs = {"where": "step", "faults": ("wait_at_gate",)}
    settings = {**SMALL, "iterations": 12, "item_deadline": 120.0} | SINGLE_FRAGMENTS.get(algorithm, {})
    result = train(algorithm, env=FaultyEnv, env_kwargs=kwargs, callbacks=[OpenGate(8)], **settings)
    assert num_faults() == 1
    assert steps_per_iteration(result) == [STEPS_PER_ITERATION // 2] * 12
    assert num_restarts(caplog, "") == 0


# Environments that raise.


@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_anything_an_environment_raises_is_tolerated(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """The worker logs the type, the place and the traceback."""
    faults = ["exit_process", "raise_unpicklable"] + (["run_out_of_memory"] if where != "close" else [])
    with caplog.at_level(logging.WARNING):
        result = train_with_faults("a2c", where, *faults)
    if where == "close":  # environments are closed only at the end
        assert result.summary["stopped_by"] == "iterations"
        return
    assert num_faults() == 3
    assert result.metrics[-1]["rollout/env_failures"] == 3
    assert result.summary["timesteps"] == 6 * STEPS_PER_ITERATION - (3 if where == "step" else 0)
    verb = {"init": "construction"}.get(where, where)
    for name in ("SystemExit: 3", "Unpicklable: (no message: RuntimeError)", "MemoryError"):
        assert f"environment {verb} raised {name}" in caplog.text.replace("_ArrayMemoryError", "MemoryError")
    assert "in worker rollouts-" in caplog.text
    assert "in raise_unpicklable" in caplog.text
    assert num_restarts(caplog, "") == 0


def test_an_environment_that_always_fails_ends_the_run() -> None:
    with pytest.raises(OperatorError) as raised:
        train_with_faults("a2c", "step", "raise_unpicklable", times=1000, max_env_failures=2)
    text = str(raised.value)
    assert "environment step raised Unpicklable: (no message: RuntimeError)" in text
    assert "failure 3 in a row with no episode ended in between (max_env_failures is 2)" in text
    assert "in raise_unpicklable" in text


@pytest.mark.parametrize("algorithm", ["reinforce", "maml"])
def test_failures_do_not_change_the_number_of_episodes(algorithm: str) -> None:
    if algorithm == "maml":
        settings: dict[str, Any] = {"env": FailingPoint, "num_shards": 2, "num_envs": 4, "iterations": 2}
        result = train("maml", engine="inline", hidden=(8,), **settings)
        assert len(result.returns) == 8  # those after adaptation
    else:
        settings = {"iterations": 3, "episodes_per_iter": 8, "num_envs": 4, "num_shards": 2}
        kwargs = {"where": "step", "faults": ("exit_process",), "times": 5}
        result = train("reinforce", env=FaultyEnv, env_kwargs=kwargs, num_workers=2, engine="process", **settings)
        assert result.summary["episodes"] == 24
        assert result.summary["timesteps"] == 24 * 7
        assert result.metrics[-1]["rollout/env_failures"] == 5


class FailingPoint(gym.Wrapper[Any, Any, Any, Any]):
    """Fails in every seventh episode of all environments."""

    num_episodes = 0

    def __init__(self) -> None:
        super().__init__(gym.make("PointGoals-v0", max_episode_steps=5))

    def reset(self, **settings: Any) -> Any:
        FailingPoint.num_episodes += 1
        self.fails = FailingPoint.num_episodes % 7 == 0
        return super().reset(**settings)

    def step(self, action: Any) -> Any:
        if self.fails:
            raise RuntimeError("the simulator broke down")
        return super().step(action)


# Invalid observations and rewards are not used for training.


class InvalidEnv(gym.Env[Any, Any]):
    """Returns an invalid observation or reward in every episode after the first 30."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    num_episodes = 0
    every = 1

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        InvalidEnv.num_episodes += 1
        self._steps = 0
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        obs: Any = self.np_random.random(2, np.float32)
        reward: Any = 1.0
        if InvalidEnv.num_episodes > 30 and InvalidEnv.num_episodes % self.every == 0 and self._steps == 3:
            obs = {"nan": obs * np.nan, "shape": obs[:1], "type": {"x": 1}}.get(self._kind, obs)
            reward = {"reward": np.nan, "text": "much"}.get(self._kind, reward)
        return obs, reward, self._steps == 5, False, {}


class KeepLearnerState(Callback):
    """Keeps the state of the learner after every iteration."""

    def on_train_start(self, run: Any) -> None:
        self.training = run.training

    def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
        self.state = self.training.learner.state()


INVALID_KINDS = ["nan", "shape", "type", "reward", "text"]


@pytest.mark.parametrize("kind", INVALID_KINDS)
def test_invalid_values_do_not_change_the_learner(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, normalisers and the optimiser state stay bit-identical."""
    monkeypatch.setattr(InvalidEnv, "num_episodes", 0)
    callback = KeepLearnerState()
    settings = {"normalise_obs": True, "scale_rewards": True, "num_minibatches": 2, "max_env_failures": 3}
    with pytest.raises(OperatorError, match="failure 4 in a row"):
        train(
            "ppo", env=InvalidEnv, env_kwargs={"kind": kind}, callbacks=[callback],
            **{**SMALL, **settings, "engine": "inline", "num_workers": 1, "iterations": 100},
        )  # fmt: skip
    np.testing.assert_equal(callback.training.learner.state(), callback.state)
    assert callback.training.report.iterations > 1


@pytest.mark.parametrize("kind", INVALID_KINDS)
def test_invalid_values_are_not_stored_in_replay(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InvalidEnv, "num_episodes", 0)
    monkeypatch.setattr(InvalidEnv, "every", 5)
    stored = []

    def insert(shard: ReplayShard, batch: Any) -> Any:
        stored.append(batch)
        return original(shard, batch)

    original = ReplayShard.insert
    monkeypatch.setattr(ReplayShard, "insert", insert)
    settings = {"engine": "inline", "num_workers": 1, "iterations": 60, "learning_starts": 16, "buffer_size": 500}
    result = train("dqn", env=InvalidEnv, env_kwargs={"kind": kind}, **{**SMALL, **settings})
    assert result.metrics[-1]["rollout/env_failures"] > 3
    for batch in stored:
        for name in ("obs", "next_obs", "reward", "discount"):
            assert np.isfinite(batch[name]).all()
    assert all(np.isfinite(array).all() for array in result.policy.weights().values())


# Random crashes.


def test_ppo_learns_in_environments_that_crash_at_random() -> None:
    """It takes 82,000 to 119,000 steps, which differ by the processor, whose products have other last bits."""
    preset = {**find_algorithm("ppo").presets["CartPole-v1"], "total_timesteps": 300_000}
    result = train("ppo", env=flaky_cartpole, engine="inline", seed=1, stop_return=475.0, **preset)
    assert result.summary["stopped_by"] == "stop_return"
    assert result.metrics[-1]["rollout/env_failures"] > 3


def test_a_worker_that_hangs_while_saving_is_killed_at_its_deadline() -> None:
    """Training continues, and is saved again."""

    class StopsWorkerBeforeSave(Training):
        def _spawn(self, engine: Any) -> Any:
            self.workers = super()._spawn(engine)
            return self.workers

        def _save(self, run: Any) -> None:
            if self.report.iterations == 2:
                os.kill(self.workers[0].call("pid").result(), signal.SIGSTOP)
            super()._save(run)

    algorithm = find_algorithm("a2c")
    settings = {
        "env": "cartpole",
        "engine": "process",
        "num_workers": 1,
        "num_envs": 4,
        "num_shards": 1,
        "run_dir": "run",
    }
    cfg = algorithm.settings(iterations=4, save_every=1, item_deadline=2.0, **settings)
    training = StopsWorkerBeforeSave(algorithm, cfg)
    assert training.run().summary["iterations"] == 4
    checkpoints = Checkpoints("run/checkpoints").all()
    assert [checkpoint.about["iterations"] for checkpoint in checkpoints][-2:] == [3, 4]
    assert training.result.summary["worker_restarts"] >= 1


class SlowEndless(CartPoleEnv):
    """Has slow steps and never ends an episode."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        self.state = np.zeros(4)
        return super().step(action)


def test_restoring_an_environment_may_take_longer_than_the_item_deadline() -> None:
    settings = {"engine": "process", "num_workers": 1, "item_deadline": 2.0, "max_restarts": 1}
    train("a2c", env=SlowEndless, num_envs=1, num_shards=1, fragment_steps=10, iterations=40, run_dir="run", **settings)
    result = resume("run", env=SlowEndless, iterations=42)
    assert result.summary["iterations"] == 42
    assert "rollout/worker_restarts" not in result.metrics[-1]
