"""Hindsight experience replay with every algorithm that has it: what it stores, learns, repeats and refuses."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raceway.agents import Spaces, build_agent
from raceway.algorithms import algorithm_names, dqn, find_algorithm
from raceway.envs import BitFlipping, EnvSettings, Reach, make_slots
from raceway.errors import ConfigError
from raceway.ops import EpisodeTransitions, Transitions, transitions
from raceway.rollouts import Collector
from raceway.training.train import resume, train
from tests.catalogue.small_settings import setting_names, small_settings
from tests.training.saved_runs import assert_same_state

NAMES = [name for name in algorithm_names() if "replay" in setting_names(name)]
CONTINUOUS = [name for name in NAMES if name != "dqn"]


def hindsight_settings(name: str, **settings: Any) -> dict[str, Any]:
    """Return the smallest settings of an algorithm that replays in hindsight."""
    env: dict[str, Any] = {"env": "bitflipping" if name == "dqn" else "reach", "env_kwargs": {}}
    return small_settings(name, **{**env, "replay": "her", "n_step": 1, **settings})


def test_the_algorithms_with_hindsight() -> None:
    assert {"ddpg", "dqn", "sac", "td3", "tqc"} <= set(NAMES)


# What is stored.


@pytest.mark.parametrize("env", ["bitflipping", "reach"])
def test_recorded_rewards_and_ends_are_those_of_the_achieved_goals(env: str) -> None:
    """So the goal that a step has achieved is that after it, also in the last step of an episode that terminates."""
    slots = make_slots(EnvSettings(env, {"num_bits": 3} if env == "bitflipping" else {}).resolved(), 3)
    functions: Any = BitFlipping(3) if env == "bitflipping" else Reach()
    algorithm = find_algorithm("dqn" if env == "bitflipping" else "ddpg")
    spaces = Spaces(slots.observation_space, slots.action_space)
    cfg = algorithm.config(hidden=(8,), learning_starts=1000)
    agent, explorer = build_agent(algorithm.agent, spaces, cfg, 0), algorithm.make_explorer(spaces, cfg)
    collector = Collector(slots, agent.actor, seed=0, shard=0, explorer=explorer, keep_terminal_obs=True)
    rows, num_rows, num_steps = EpisodeTransitions(gamma=0.5), 0, 0
    for number in range(40):
        batch = rows(collector.fragment(7, number))
        num_rows, num_steps = num_rows + len(batch["reward"]), num_steps + 21
        achieved, desired = batch["next_obs"]["achieved_goal"], batch["next_obs"]["desired_goal"]
        np.testing.assert_array_equal(batch["reward"], functions.compute_reward(achieved, desired))
        terminated = functions.compute_terminated(achieved, desired) if env == "bitflipping" else np.zeros(len(desired))
        np.testing.assert_array_equal(batch["discount"], np.where(terminated, 0, 0.5))
        assert (terminated[batch["steps_after"] > 0] == 0).all()
        np.testing.assert_array_equal(batch["obs"]["desired_goal"], desired)
        assert batch["collected"].tolist() == [21]
    assert num_rows == num_steps - (0 if rows.held is None else rows.held["valid"].sum())
    collector.close()


def test_uniform_replay_has_the_rows_it_always_had() -> None:
    assert dqn.Config().hindsight is None
    assert dqn.Config().replay_settings.hindsight is None
    assert isinstance(transitions(0.9), Transitions)


# What is learnt.


def test_q_values_of_flipping_bits(tmp_path: Path) -> None:
    gamma, bits = 0.9, 4
    result = train(
        "dqn", env="bitflipping", env_kwargs={"num_bits": bits}, replay="her", gamma=gamma, seed=1, num_envs=4,
        num_shards=1, fragment_steps=4, total_timesteps=5000, hidden=(64,), lr=2e-3, lr_end=0.0, batch_size=128,
        learning_starts=200, steps_per_update=4, target_every=25, epsilon=0.3, epsilon_steps=1000, engine="inline",
        progress=False, run_dir=tmp_path / "run",
    )  # fmt: skip
    states = np.array(list(itertools.product(range(2), repeat=bits)), np.float32)
    first, goal = (part.reshape(-1, bits) for part in np.broadcast_arrays(states[:, None], states[None]))
    obs = {"observation": first, "achieved_goal": first, "desired_goal": goal}
    with torch.no_grad():
        values = result.policy.policy({name: torch.tensor(part) for name, part in obs.items()}, {})[0].amax(-1).numpy()
    differ = (first != goal).any(-1)
    expected = BitFlipping(bits).value(first, goal, gamma)
    assert np.abs(values - expected)[differ].mean() < 0.15
    evaluation = result.policy.evaluate(100)
    assert evaluation.successes is not None
    assert evaluation.successes.mean() >= 0.95


@pytest.mark.parametrize("name", CONTINUOUS)
def test_goals_on_a_line_are_reached(name: str, tmp_path: Path) -> None:
    result = train(
        name, env="reach", env_kwargs={"num_dims": 1}, replay="her", seed=1, hidden=(32, 32), gamma=0.9, tau=0.05,
        lr=3e-3, batch_size=64, learning_starts=100, steps_per_update=2, total_timesteps=1500, engine="inline",
        progress=False, run_dir=tmp_path / "run",
    )  # fmt: skip
    evaluation = result.policy.evaluate(100)
    assert evaluation.successes is not None
    assert evaluation.successes.mean() >= 0.9
    assert evaluation.mean_return > -6  # the best is about -2.5, that of random actions -17


# How it runs.


def test_episodes_may_be_longer_than_learning_starts(tmp_path: Path) -> None:
    """Steps count for the limits of storing and sampling when their episode has ended, so neither waits forever."""
    settings = hindsight_settings("ddpg", num_envs=2, num_shards=1, fragment_steps=1, learning_starts=4)
    summary = train("ddpg", total_timesteps=200, progress=False, run_dir=tmp_path / "run", **settings).summary
    assert summary["timesteps"] == 200


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_the_same_bytes_in_other_processes_and_after_a_resume(name: str, tmp_path: Path) -> None:
    def run(path: str, iterations: int, **settings: Any) -> dict[str, Any]:
        options: dict[str, Any] = {"iterations": iterations, "progress": False, "run_dir": tmp_path / path}
        summary: dict[str, Any] = train(name, **options, **hindsight_settings(name, **settings)).summary
        return summary

    whole = run("whole", 10)
    assert whole["state_sha256"] == run("processes", 10, engine="process", num_workers=2)["state_sha256"]
    assert whole["weights_sha256"] != run("uniform", 10, replay="uniform")["weights_sha256"]
    run("parts", 5)  # with open episodes
    resume(tmp_path / "parts", iterations=10, progress=False)
    assert_same_state(str(tmp_path / "whole"), str(tmp_path / "parts"))


# What is refused, before the training starts.


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dqn", {"env": "cartpole"}, "hindsight replay needs observations of a Dict space with observation, achieved"),
        ("sac", {"env": "pendulum"}, "hindsight replay needs observations of a Dict space with observation, achieved"),
        ("dqn", {"n_step": 3}, "replay her needs transitions of one step, not n_step 3. Set n_step to 1"),
        ("dqn", {"network": "lstm"}, "cannot train a recurrent network. Use --network mlp"),
        ("dqn", {"stacked_frames": True}, "replay her does not store stacked frames once. Set stacked_frames to False"),
        ("dqn", {"last_action_and_reward": True}, "but not those in observations. Set last_action_and_reward to False"),
        ("dqn", {"env": "pettingzoo:mpe2.simple_spread_v3"}, "replay her is for environments with one agent"),
        ("sac", {"replay": "uniform", "her_goals": 8}, "her_goals and her_strategy are settings of replay her"),
        ("dqn", {"replay": "hindsight"}, "unknown kind of replay 'hindsight'. Choose from: her, uniform"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(name, iterations=1, progress=False, run_dir=tmp_path / "run", **hindsight_settings(name, **settings))


def test_other_algorithms_do_not_have_the_setting() -> None:
    assert "replay" not in setting_names("apex")
