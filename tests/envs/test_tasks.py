"""Environments with tasks. A task depends on the seed alone."""

import gymnasium as gym
import numpy as np
import pytest

from raceway.envs import EnvSettings, assign_tasks, has_tasks, make_env, make_slots, resolve_env_id
from raceway.envs.tasks import PointGoals
from raceway.errors import ConfigError


def bare(name: str, **settings: object) -> gym.Env:
    return make_env(EnvSettings(name, settings))


def test_names_of_environments_with_tasks() -> None:
    assert resolve_env_id("point") == "PointGoals-v0"
    assert resolve_env_id("cheetah-direction") == "HalfCheetahDirection-v0"
    assert bare("point").spec.max_episode_steps == 50  # type: ignore[union-attr]


# PointGoals.


def test_goals_are_in_their_region() -> None:
    square = PointGoals(size=0.5).sample_tasks(1000, seed=1)
    assert square.shape == (1000, 2)
    assert (abs(square) <= 0.5).all()
    assert (square.min(0) < -0.45).all()
    assert (square.max(0) > 0.45).all()
    circle = PointGoals("semicircle", 2.0).sample_tasks(1000, seed=1)
    assert np.allclose(np.hypot(*circle.T), 2)
    assert (circle[:, 1] >= 0).all()
    assert circle[:, 0].min() < -1.9
    with pytest.raises(ConfigError, match="semicircle"):
        PointGoals("sphere")


def test_a_seed_gives_the_same_tasks() -> None:
    env = PointGoals()
    assert np.array_equal(env.sample_tasks(5, seed=3), PointGoals().sample_tasks(5, seed=3))
    assert not np.array_equal(env.sample_tasks(5, seed=3), env.sample_tasks(5, seed=4))


def test_a_step_is_bounded_and_costs_the_distance() -> None:
    env = PointGoals()
    env.set_task(np.array([0.3, -0.4]))
    first, _ = env.reset(seed=0)
    assert first.tolist() == [0, 0]
    obs, reward, terminated, truncated, _ = env.step(np.array([7.0, -0.5], np.float32))
    assert np.allclose(obs, [0.1, -0.05])
    assert reward == pytest.approx(-np.hypot(0.2, 0.35))
    assert (terminated, truncated) == (False, False)


def test_an_episode_ends_at_the_goal() -> None:
    env = PointGoals()
    env.set_task(np.array([0.1, 0.0]))
    env.reset(seed=0)
    assert env.step(np.array([0.5, 0.0], np.float32))[2] is False
    assert env.step(np.array([0.45, 0.0], np.float32))[2] is True


def test_a_task_stays_set_and_otherwise_every_episode_has_its_own() -> None:
    def first_reward(env: gym.Env, seed: int) -> float:
        env.reset(seed=seed)
        return float(env.step(np.zeros(2, np.float32))[1])

    env = PointGoals()
    assert first_reward(env, 1) == first_reward(PointGoals(), 1) != first_reward(env, 2)
    env.set_task(np.array([0.2, 0.0]))
    assert first_reward(env, 1) == first_reward(env, 2) == pytest.approx(-0.2)


# The cheetah.


def test_forward_and_backward_are_opposites() -> None:
    pytest.importorskip("mujoco")
    rewards = {}
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 6))
    for direction in (1.0, -1.0):
        env = bare("cheetah-direction")
        env.get_wrapper_attr("set_task")(np.array(direction))
        env.reset(seed=0)
        steps = [env.step(action) for action in actions]
        rewards[direction] = np.array([step[1] for step in steps])
        speeds = np.array([step[4]["x_velocity"] for step in steps])
        env.close()
    control = 0.05 * (actions**2).sum(1)
    assert np.allclose(rewards[1.0], speeds - control)
    assert np.allclose(rewards[-1.0], -speeds - control)


def test_half_of_the_directions_are_forward() -> None:
    pytest.importorskip("mujoco")
    env = bare("cheetah-direction")
    sample = env.get_wrapper_attr("sample_tasks")
    assert sorted(sample(6, seed=0).tolist()) == [-1, -1, -1, 1, 1, 1]
    assert {float(sample(1, seed=seed)[0]) for seed in range(20)} == {-1, 1}
    assert len({tuple(sample(6, seed=seed)) for seed in range(20)}) > 5
    env.close()


def test_without_a_task_the_direction_depends_on_the_episode() -> None:
    pytest.importorskip("mujoco")
    env = bare("cheetah-direction")
    signs = []
    for seed in (*range(8), *range(8)):
        env.reset(seed=seed)
        _, reward, _, _, info = env.step(np.zeros(6, np.float32))
        signs.append(reward == info["x_velocity"])
    env.close()
    assert signs[:8] == signs[8:]
    assert set(signs) == {True, False}


# Shards.


def test_every_shard_has_its_task() -> None:
    goals = PointGoals().sample_tasks
    tasks = {}
    for shard in (0, 2):
        for number in (0, 1):
            slots = make_slots(EnvSettings("point"), 3)
            assert has_tasks(slots)
            assign_tasks(slots, seed=5, number=number, shard=shard, num_shards=4)
            env_tasks = [env.unwrapped._task.tolist() for env in slots.envs]  # type: ignore[attr-defined]
            assert env_tasks[0] == env_tasks[1] == env_tasks[2]
            tasks[shard, number] = tuple(env_tasks[0])
            slots.close()
    assert len(set(tasks.values())) == 4
    assert tasks[0, 0] not in {tuple(goal) for goal in goals(4, seed=5).tolist()}  # sampled with a derived seed


def test_environments_without_tasks_are_refused() -> None:
    slots = make_slots(EnvSettings("pendulum"), 1)
    assert not has_tasks(slots)
    with pytest.raises(ConfigError, match="no tasks"):
        assign_tasks(slots, seed=0, number=0, shard=0, num_shards=1)
    slots.close()
