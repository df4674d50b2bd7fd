"""Datasets of short random episodes in any environment, for tests of what learns from them."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from raceway.datasets import DatasetWriter
from raceway.datasets.episodes import make_episode
from raceway.rl import tree_map


def record_random(path: Path, env: str | Any, /, num_episodes: int = 5, max_steps: int = 40, **about: Any) -> Path:
    """Write a dataset of random actions, and return its path. An environment that has no name is not named in it."""
    made = gym.make(env) if isinstance(env, str) else env
    made.action_space.seed(0)
    name = {"env": env} if isinstance(env, str) else {}
    with DatasetWriter(path, made.observation_space, made.action_space, {**name, **about}) as writer:
        for seed in range(num_episodes):
            obs, actions, rewards, ended = [made.reset(seed=seed)[0]], [], [], False
            while not ended:
                actions.append(made.action_space.sample())
                following, reward, terminated, truncated, _ = made.step(actions[-1])
                obs.append(following)
                rewards.append(reward)
                truncated = truncated or len(actions) == max_steps
                ended = terminated or truncated
            columns = {"obs": tree_map(lambda *parts: np.stack(parts), *obs), "action": actions, "reward": rewards}
            writer.add(make_episode(*writer._spaces, **columns, terminated=terminated, truncated=truncated))
    made.close()
    return path
