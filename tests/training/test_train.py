"""Training: identical weights on every engine, limits, the run directory, and errors."""

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import raceway
from raceway.algorithms import find_algorithm
from raceway.engine.base import Actor
from raceway.errors import ConfigError, OperatorError
from raceway.runs.metrics_file import read_metrics
from raceway.training.train import Training, train
from raceway.training.train_seeds import train_seeds
from raceway.ui.callback import Callback
from tests.odd_envs import Odd

SMALL: dict[str, Any] = {"iterations": 3, "episodes_per_iter": 20, "num_envs": 20}


@pytest.fixture(autouse=True)
def _in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def weights_hash(**settings: Any) -> str:
    return train("reinforce", **{**SMALL, **settings}).summary["weights_sha256"]


# Identical weights.


SHORT: dict[str, Any] = {"iterations": 2, "episodes_per_iter": 10, "num_envs": 10}
HALFCHEETAH: dict[str, Any] = {"env": "halfcheetah", "env_kwargs": {"max_episode_steps": 60}, **SHORT}


def test_the_weights_do_not_depend_on_the_workers() -> None:
    """Nor on how many of them share the shards; tests/catalogue has other engines, and every algorithm."""
    local = weights_hash(engine="inline", **HALFCHEETAH)
    assert weights_hash(engine="inline", num_workers=3, **HALFCHEETAH) == local
    assert weights_hash(engine="process", num_workers=5, **HALFCHEETAH) == local


class WorkerPids(Callback):
    """Records the process ids of the workers."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def on_train_start(self, run: Any) -> None:
        training = run.training
        spawn = training._spawn

        def spawn_and_record(engine: Any) -> list[Actor]:
            workers: list[Actor] = spawn(engine)
            self.pids = {worker.call("pid").result(60) for worker in workers}
            return workers

        training._spawn = spawn_and_record


def test_every_worker_is_a_separate_process() -> None:
    workers = WorkerPids()
    result = train("reinforce", callbacks=[workers], num_workers=5, **SMALL)
    assert result.summary["num_workers"] == 5
    assert len(workers.pids) == 5
    assert os.getpid() not in workers.pids


class KillWorker(Callback):
    """Kills a worker after the first iteration."""

    def __init__(self) -> None:
        self.workers = WorkerPids()

    def on_train_start(self, run: Any) -> None:
        self.workers.on_train_start(run)

    def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
        if row["time/iterations"] == 1:
            os.kill(min(self.workers.pids), signal.SIGKILL)


def test_a_killed_worker_does_not_change_the_weights() -> None:
    killed = train("reinforce", callbacks=[KillWorker()], num_workers=2, **SMALL)
    assert killed.summary["weights_sha256"] == weights_hash(engine="inline")
    assert killed.summary["episodes"] == 60


def test_envpool_weights_do_not_depend_on_the_workers() -> None:
    settings: dict[str, Any] = {"env": "cartpole", "vector": "envpool", **SMALL}
    local = train("reinforce", engine="inline", **settings).summary
    assert local["episodes"] == 60
    assert weights_hash(num_workers=2, **settings) == local["weights_sha256"]


def test_the_number_of_torch_threads_is_restored() -> None:
    before = torch.get_num_threads()
    train("reinforce", engine="inline", **SMALL)
    assert torch.get_num_threads() == before


# Learning.


class Match(gym.Env[Any, Any]):
    """Shows a number; the return counts how often the action was that number."""

    def __init__(self, actions: spaces.Space[Any], observations: str = "box") -> None:
        self.action_space = actions
        self.width = int(getattr(actions, "n", 2))
        self.observations = observations
        box = spaces.Box(0, 1, (self.width,), np.float32)
        self.observation_space: Any = {
            "box": box,
            "discrete": spaces.Discrete(self.width),
            "dict": spaces.Dict({"where": box, "noise": spaces.Discrete(3)}),
            "mask": spaces.Dict({"where": box, "action_mask": spaces.Box(0, 1, (self.width,), np.int8)}),
        }[observations]

    def _observe(self) -> Any:
        self.goal = int(self.np_random.integers(self.width))
        box = np.eye(self.width, dtype=np.float32)[self.goal]
        mask = np.ones(self.width, np.int8)
        mask[(self.goal + 1) % self.width] = 0
        return {
            "box": box,
            "discrete": self.goal,
            "dict": {"where": box, "noise": int(self.np_random.integers(3))},
            "mask": {"where": box, "action_mask": mask},
        }[self.observations]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.observations == "mask":
            assert action != (self.goal + 1) % self.width, "a masked action"
        if isinstance(self.action_space, spaces.Box):
            reward = -abs(float(action[0]) - self.goal)
        else:
            reward = float(np.mean(np.asarray(action) == self.goal))
        self.steps += 1
        return self._observe(), reward, self.steps == 10, False, {}


ACTIONS = {
    "discrete": spaces.Discrete(3),
    "started": spaces.Discrete(3, start=0),
    "multidiscrete": spaces.MultiDiscrete([2, 2]),
    "box": spaces.Box(-2, 2, (1,)),
}


@pytest.mark.parametrize(
    ("actions", "observations", "network"),
    [
        ("discrete", "box", "mlp"),
        ("discrete", "discrete", "mlp"),
        ("discrete", "dict", "mlp"),
        ("discrete", "mask", "mlp"),
        ("discrete", "box", "lstm"),
        ("multidiscrete", "box", "mlp"),
        ("box", "box", "mlp"),
    ],
)
def test_reinforce_learns_to_match(actions: str, observations: str, network: str) -> None:
    settings: dict[str, Any] = {"env_kwargs": {"actions": ACTIONS[actions], "observations": observations}}
    result = train(
        "reinforce", env=Match, engine="inline", network=network, hidden=(32,), lr=0.03, gamma=0.1,
        iterations=40, episodes_per_iter=40, num_envs=40, num_shards=4, metrics_interval=0.0, **settings,
    )  # fmt: skip
    means = [row["rollout/iteration_rew_mean"] for row in result.metrics]
    assert np.mean(means[-5:]) > np.mean(means[:3]) + 1.0


def custom_network(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def test_a_custom_network_is_sent_to_the_workers() -> None:
    local = weights_hash(network=custom_network, engine="inline")
    assert weights_hash(network=custom_network, num_workers=2) == local
    assert weights_hash(network="tests.training.test_train:custom_network", engine="inline") == local


def test_a_missing_network_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'tests.training.test_train:gone' cannot be imported.*module:function"):
        train("reinforce", network="tests.training.test_train:gone", **SMALL)


# Limits.


@pytest.mark.parametrize(
    ("limit", "stopped_by"),
    [
        ({"iterations": 2}, "iterations"),
        ({"total_timesteps": 300, "iterations": None}, "total_timesteps"),
        ({"stop_seconds": 1e-6, "iterations": None}, "stop_seconds"),
        ({"stop_return": 5.0, "iterations": 9}, "stop_return"),
        ({"stop_eval_return": 1.0, "eval_every": 1, "eval_episodes": 1, "iterations": 9}, "stop_eval_return"),
        ({"stop_eval_return": 1e6, "eval_every": 1, "eval_episodes": 1, "iterations": 2}, "iterations"),
        ({"total_timesteps": 10**9, "iterations": 1}, "iterations"),
    ],
)
def test_the_first_limit_reached_ends_training(limit: dict[str, Any], stopped_by: str) -> None:
    result = train("reinforce", engine="inline", **{**SMALL, "episodes_per_iter": 100, **limit})
    assert result.summary["stopped_by"] == stopped_by
    assert result.summary["timesteps"] == result.metrics[-1]["time/total_timesteps"]


def test_without_a_limit_there_are_100_iterations() -> None:
    limits = [find_algorithm("reinforce").settings(**settings) for settings in ({}, {"stop_seconds": 3.0})]
    assert [cfg.num_iterations for cfg in limits] == [100, None]


# The run directory.


def test_a_run_directory_describes_the_run() -> None:
    result = raceway.train("reinforce", engine="inline", env="cartpole", seed=3, metrics_interval=0.0, **SMALL)
    about = json.loads((result.path / "config.json").read_text())
    assert about["schema"] == 3
    assert about["algorithm"] == "reinforce"
    assert about["config"]["seed"] == 3
    assert about["config"]["lr"] == 0.01
    assert {"python", "torch", "numpy", "gymnasium", "raceway"} <= about["versions"].keys()
    assert about["command"]
    rows = read_metrics(result.path)
    assert [row["time/iterations"] for row in rows] == [1, 2, 3]
    assert rows[-1]["time/episodes"] == 60 == len(result.returns)
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps", "train/loss"} <= rows[0].keys()
    assert rows[-1]["rollout/ep_rew_mean"] == pytest.approx(np.mean(result.returns))
    assert json.loads((result.path / "summary.json").read_text()) == result.summary


def test_two_runs_cannot_share_a_directory() -> None:
    train("reinforce", engine="inline", run_dir="here", **SMALL)
    with pytest.raises(ConfigError, match=r"already a run in here.*another --run-dir"):
        train("reinforce", engine="inline", run_dir="here", **SMALL)


def test_a_directory_that_cannot_be_created_is_an_error() -> None:
    Path("file").write_text("")
    with pytest.raises(ConfigError, match=r"a run cannot be saved in file/run"):
        train("reinforce", engine="inline", run_dir="file/run", **SMALL)


def test_statistics_over_seeds() -> None:
    outcome = train_seeds("reinforce", range(2, 5), engine="inline", **SMALL)
    assert outcome.summary["seeds"] == [2, 3, 4]
    assert len(set(outcome.summary["weights_sha256"])) == 3
    low, high = outcome.summary["interval"]
    assert low <= outcome.summary["iqm"] <= high
    assert outcome.summary["mean"] == pytest.approx(np.mean(outcome.summary["mean_returns"]))
    assert Path(outcome.summary["plot"]).stat().st_size > 10_000
    assert outcome.results[1].summary["weights_sha256"] == weights_hash(seed=3, engine="inline")
    assert "interquartile mean" in "\n".join(outcome.lines)


# The number of workers.


@pytest.mark.parametrize(
    ("kwargs", "min_workers", "max_workers"),
    [({}, 0, 0), ({"seconds": 0.001, "busy": True}, 2, 4), ({"seconds": 0.05}, 8, 20)],
)
def test_auto_chooses_the_number_of_workers_for_any_environment(
    kwargs: dict[str, Any], min_workers: int, max_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raceway.training.worker_count.num_cores", lambda: 2)
    cfg = find_algorithm("reinforce").settings(env=Odd, env_kwargs=kwargs)
    training = Training(find_algorithm("reinforce"), cfg)
    assert min_workers <= training.num_workers <= max_workers, training.num_workers_reason
    assert "an environment step takes" in training.num_workers_reason


# Errors.


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raise", r"RuntimeError: the simulator broke down\n.*rollouts-0, shard \d+, environment 0 of 1, step 2"),
        ("reset", r"RuntimeError: the simulator did not start\n.*rollouts-0, shard \d+, environment 0 of 1, step 0"),
        ("nan", r"observation of \[nan, nan\]\n.*worker rollouts-0, shard \d+, environment 0 of 1, step 2"),
        ("reward", r"reward of \[nan\]\n.*worker rollouts-0, shard \d+, environment 0 of 1, step 2"),
        ("shape", r"observation of shape \(1,\); expected \(2,\)\n.*environment 0 of 1, step 2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", ["inline", "process"])
def test_an_environment_that_fails_is_named(how: str, text: str, engine: str) -> None:
    settings = {"env": "tests.odd_envs:Odd-v0", "env_kwargs": {"how": how}, "engine": engine, "num_workers": 1}
    with pytest.raises(OperatorError, match=text):
        train("reinforce", **{**SMALL, **settings})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"env": "cartpol"}, "Did you mean 'cartpole'"),
        ({"lrr": 1.0}, "unknown setting of reinforce 'lrr'. Did you mean 'lr'"),
        ({"progess": True}, "unknown setting of reinforce 'progess'. Did you mean 'progress'"),
        ({"num_workers": 50, "num_shards": 5}, "50 workers need at least as many shards"),
        ({"num_envs": 7, "num_shards": 2}, "cannot be divided into 2 shards"),
        ({"address": "auto"}, "--address names a Ray cluster"),
        ({"engine": "proces"}, "Did you mean 'process'"),
        ({"iterations": 0}, "iterations must be a whole number from 1"),
        ({"stop_seconds": -1.0}, "stop_seconds must be a number above 0"),
        ({"vector": "fast"}, "unknown vector mode 'fast'"),
        ({"vector": "native", "env": "Acrobot-v1"}, "Acrobot-v1 has no native vector environment"),
    ],
)
def test_invalid_settings_are_errors(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        train("reinforce", **settings)
    assert not Path("runs").exists()


def test_an_algorithm_for_discrete_actions_refuses_continuous_ones() -> None:
    reinforce = find_algorithm("reinforce")
    discrete = dataclasses.replace(reinforce, name="only", actions=("discrete",))
    with pytest.raises(ConfigError, match=r"only is for discrete actions, and Pendulum-v1 has Box.*Use.*reinforce"):
        Training(discrete, reinforce.settings(env="Pendulum-v1"))


def test_an_unknown_algorithm_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown algorithm 'reinforc'. Did you mean 'reinforce'"):
        train("reinforc")
