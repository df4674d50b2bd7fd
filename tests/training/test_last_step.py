"""Runs whose policies see the last action and reward: training, resuming, evaluation, videos, loading and recording."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import raceway
from raceway.agents import Policy
from raceway.envs import EnvSettings
from raceway.errors import ConfigError
from raceway.rl.last_step import LAST_ACTION, LAST_REWARD
from raceway.rl.seeding import Purpose, derive_seed, episode_seed
from raceway.rollouts.video import VideoRecorder
from raceway.training.train import resume, train
from tests.catalogue.test_recurrence import QUICK

SETTINGS: dict[str, Any] = {**QUICK, "last_action_and_reward": True}


def dqn(**settings: Any) -> Any:
    return train("dqn", **{**SETTINGS, "engine": "inline", **settings})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    dqn(run_dir=path)
    return path


def strong(run: Path) -> Any:
    """Return the policy of a run with larger weights, so that actions differ and the last step matters."""
    policy = raceway.load(run)
    with torch.no_grad():
        for parameter in policy.policy.parameters():
            parameter *= 4
    return policy


@pytest.mark.parametrize("settings", [{"engine": "process", "num_workers": 2}, {"vector": "stepped"}], ids=str)
def test_the_weights_do_not_depend_on_where_environments_are(settings: dict[str, Any], run: Path) -> None:
    expected = raceway.load(run, "latest").sha256()
    assert dqn(**settings).summary["weights_sha256"] == expected
    assert dqn(last_action_and_reward=False).summary["weights_sha256"] != expected


@pytest.mark.parametrize("steps", [24, 104])
def test_a_run_resumes_exactly_in_the_middle_of_episodes(steps: int, run: Path, tmp_path: Path) -> None:
    dqn(run_dir=tmp_path / "part", total_timesteps=steps)
    summary = resume(tmp_path / "part", total_timesteps=SETTINGS["total_timesteps"], progress=False).summary
    assert summary["weights_sha256"] == raceway.load(run, "latest").sha256()


def test_it_cannot_change_on_resume(run: Path) -> None:
    with pytest.raises(ConfigError, match="last_action_and_reward cannot change"):
        resume(run, last_action_and_reward=False, progress=False)


def test_a_loaded_policy_gets_observations_of_the_environment(run: Path) -> None:
    policy, env = strong(run), gym.make("CartPolePositions-v1")
    expected = policy.evaluate(4, seed=3)
    lengths = []
    for slot in range(4):
        seed = episode_seed(derive_seed(3, Purpose.EVALUATION), 0, slot, 0)
        (obs, _), over, reward = env.reset(seed=seed), False, 5.0  # which the first step does not use
        policy.reset()
        lengths.append(0)
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs, reward=reward))
            over, lengths[-1] = terminated or truncated, lengths[-1] + 1
    assert lengths == expected.lengths.tolist()
    assert len(set(lengths)) > 1


def test_whole_observations_and_batches_give_the_same_actions(run: Path) -> None:
    plain, whole, single = strong(run), strong(run), [strong(run), strong(run)]
    random = np.random.default_rng(0)
    actions = rewards = None
    for step in range(12):
        obs, begins = random.normal(size=(2, 2)).astype(np.float32), [step == 0, step in (0, 6)]
        if step == 6:
            for policy in (plain, whole):
                policy.reset([1])
            single[1].reset()
        last = np.zeros((2, 2), np.float32) if actions is None else np.eye(2, dtype=np.float32)[actions]
        reward = np.zeros((2, 1), np.float32) if rewards is None else rewards[:, None].copy()
        last[begins], reward[begins] = 0, 0
        given = None if rewards is None else rewards
        each = [
            policy.act(obs[row], reward=None if rewards is None else rewards[row]) for row, policy in enumerate(single)
        ]
        actions = plain.act(obs, reward=given)
        full = {"observation": obs, LAST_ACTION: last, LAST_REWARD: reward}
        assert actions.tolist() == whole.act(full).tolist() == each
        rewards = random.normal(size=2).astype(np.float32)
    with pytest.raises(ConfigError, match="already has a last_reward"):
        whole.act(full, reward=[1.0, 1.0])
    with pytest.raises(ConfigError, match="expected 2 finite"):
        plain.act(obs, reward=1.0)
    with pytest.raises(ConfigError, match="last actions of 2 episodes, but got 3"):
        plain.act(np.zeros((3, 2), np.float32))
    with pytest.raises(ConfigError, match="rows 0 to 1"):
        plain.reset([2])


def test_a_video_shows_the_policy_with_its_rewards(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []
    forward = Policy.forward

    def recording(policy: Policy, obs: Any, state: Any) -> Any:
        seen.append((obs[LAST_ACTION].sum().item(), obs[LAST_REWARD].item()))
        return forward(policy, obs, state)

    policy = raceway.load(run)
    monkeypatch.setattr(Policy, "forward", recording)
    with VideoRecorder(policy.env_settings()) as recorder:
        frames = list(recorder._frames(policy, 2, 0, True))
    lengths = [int(length) for length in recorder.returns]
    assert len(frames) == sum(lengths) + 2
    assert seen == [(float(step > 0), float(step > 0)) for length in lengths for step in range(length)]


def test_recorded_episodes_have_both_and_are_learnt_from(run: Path, tmp_path: Path) -> None:
    dataset = raceway.record(raceway.load(run), tmp_path / "data", num_episodes=3)
    assert dataset.observation_space["last_action"].shape == (2,)
    result = train("bc", dataset=tmp_path / "data", total_updates=2, progress=False, run_dir=tmp_path / "bc")
    assert result.policy.env_settings().last_action_and_reward
    assert result.policy.evaluate(2).mean_return > 0


def test_continuous_actions_are_seen_as_environments_get_them(tmp_path: Path) -> None:
    result = train(
        "ppo", env="pendulum", last_action_and_reward=True, engine="inline", num_envs=2, fragment_steps=8, iterations=1,
        hidden=(4,), num_minibatches=1, num_epochs=1, progress=False, run_dir=tmp_path / "run",
    )  # fmt: skip
    policy = result.policy
    with torch.no_grad():
        for parameter in policy.policy.parameters():
            parameter += 5.0
    assert policy.act(np.zeros(3)).tolist() == [2.0]  # clipped to the bound
    assert policy._last_step._actions.tolist() == [[2.0]]


def test_several_agents_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"for environments with one agent.*--no-last-action-and-reward"):
        train("ppo", env="pettingzoo:mpe2.simple_spread_v3", last_action_and_reward=True, iterations=1)


def test_settings_of_the_environment_have_it(run: Path) -> None:
    policy = raceway.load(run)
    assert policy.env_settings() == EnvSettings("CartPolePositions-v1", {}, "auto", True)
    assert policy.env_settings("cartpole").last_action_and_reward
