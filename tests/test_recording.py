"""`raceway.record`: a dataset of the episodes that an evaluation runs."""

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import raceway
from raceway import load, record, train
from raceway.datasets import check_spaces, open_dataset
from raceway.errors import ConfigError, EnvironmentFailed
from tests.odd_envs import Odd


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "ppo"
    train("ppo", env="cartpole", total_timesteps=1500, engine="inline", run_dir=str(path))
    return path


def test_the_episodes_are_those_of_an_evaluation(run: Path, tmp_path: Path) -> None:
    counts: list[int] = []
    dataset = record(run, tmp_path / "data", num_episodes=11, seed=3, on_progress=counts.append)
    expected = load(run).evaluate(11, seed=3)
    assert sorted(dataset.returns().tolist()) == sorted(expected.returns.tolist())
    assert sorted(dataset.lengths().tolist()) == sorted(expected.lengths.tolist())
    assert counts[-1] == 11
    assert dataset.about == {
        "algorithm": "ppo", "run": str(run), "checkpoint": load(run).about["checkpoint"],
        "steps": load(run).about["steps"], "unit": "steps", "weights_sha256": load(run).sha256(), "env": "CartPole-v1",
        "env_kwargs": {}, "seed": 3, "deterministic": True,
    }  # fmt: skip
    env = gym.make("CartPole-v1")
    check_spaces(dataset, env.observation_space, env.action_space)
    assert dataset.observation_space == env.observation_space


def test_actions_are_those_of_the_policy(run: Path, tmp_path: Path) -> None:
    policy = load(run)
    rows = record(policy, tmp_path / "data", num_episodes=3).rows(np.arange(100))
    assert policy.act(rows["obs"]).tolist() == rows["action"].tolist()
    sampled = record(policy, tmp_path / "sampled", num_episodes=3, deterministic=False)
    rows = sampled.rows(np.arange(sampled.num_steps))
    assert policy.act(rows["obs"]).tolist() != rows["action"].tolist()


def test_the_dynamics_are_those_of_the_environment(run: Path, tmp_path: Path) -> None:
    """Stepping from each observation with its action leads to the next one."""
    dataset = record(run, tmp_path / "data", num_episodes=4)
    rows = dataset.rows(np.arange(dataset.num_steps), next_obs=True)
    env: Any = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    for obs, action, next_obs, terminated in zip(
        *(rows[name] for name in ("obs", "action", "next_obs", "terminated")), strict=True
    ):
        env.state, env.steps_beyond_terminated = obs.astype(float), None
        np.testing.assert_allclose(env.step(int(action))[0], next_obs, atol=1e-5)
        assert (np.abs(next_obs[[0, 2]]) > [2.4, 12 * np.pi / 180]).any() == terminated


def test_the_same_seed_records_the_same_bytes(run: Path, tmp_path: Path) -> None:
    for name, settings in {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"deterministic": False}}.items():
        record(run, tmp_path / name, num_episodes=3, **settings)
    first, same, *others = ((tmp_path / name / "part-00000.safetensors").read_bytes() for name in "abcd")
    assert first == same
    assert first not in others


def test_the_default_path_is_in_the_run(run: Path) -> None:
    result = train("reinforce", env="cartpole", iterations=1, engine="inline", run_dir=str(run.parent / "other"))
    dataset = record(result.policy, num_episodes=2)
    assert dataset.name == str(run.parent / "other" / "dataset")
    assert open_dataset(run.parent / "other").sha256 == dataset.sha256
    with pytest.raises(ConfigError, match="exists, and a dataset is never overwritten"):
        record(result.policy, num_episodes=2)


def test_checkpoints(run: Path, tmp_path: Path) -> None:
    steps = load(run, "latest").about["steps"]
    assert record(run, tmp_path / "data", num_episodes=1, checkpoint=steps).about["steps"] == steps
    with pytest.raises(ConfigError, match="which must be best, latest, or a number of steps, not 'bset'"):
        record(run, tmp_path / "other", num_episodes=1, checkpoint="bset")


class Failing(Odd):
    """CartPole's spaces, and an error in a later episode."""

    num_resets = 0

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.make("CartPole-v1").observation_space

    def reset(self, **settings: Any) -> Any:
        super().reset(**settings)
        Failing.num_resets += 1
        if Failing.num_resets == 20:  # eight environments are tried, and have one episode each before
            raise RuntimeError("the simulator broke down")
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), *super().step(action)[1:]


def test_a_failure_leaves_nothing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="the simulator broke down"):
        record(run, tmp_path / "data", num_episodes=20, env=Failing)
    with pytest.raises(ConfigError, match="the environment has observations of"):
        record(run, tmp_path / "data", num_episodes=20, env=Odd)
    with pytest.raises(ConfigError, match="num_episodes must be a whole number from 1, not 0"):
        record(run, tmp_path / "data", num_episodes=0)
    assert os.listdir(tmp_path) == []


def test_it_is_public() -> None:
    assert raceway.record is record
