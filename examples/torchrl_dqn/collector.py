"""Collecting frames: vectorised environments and the Q-network in numpy. This module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from raceway.envs import EnvSettings, Slots, make_slots
from raceway.errors import ConfigError
from raceway.rl import empty
from raceway.rl.seeding import Purpose, derive_seed, episode_seed

Weights = list[tuple[np.ndarray, np.ndarray]]
"""The weights and biases of a multi-layer perceptron with ReLU activations."""


class FrameWriter(Protocol):
    """Where frames are appended: an `Appender`, or a storage itself."""

    def append(self, batch: Any, order: int = 0) -> int: ...


class Collector:
    """Collects frames once per iteration; its episodes continue from one collection to the next.

    Args:
        env: Gymnasium's id.
        num_envs: number of environments, stepped as a vector.
        frames: number of frames of each collection.
        writers: one for each replay shard; successive collections go to successive shards.
        seed: seed of actions and episodes.
        number: index of this collector among those of an iteration.
    """

    def __init__(
        self, env: str, *, num_envs: int, frames: int, writers: Sequence[FrameWriter], seed: int, number: int
    ) -> None:
        self.env, self.num_envs, self.writers, self.seed, self.number = env, num_envs, writers, seed, number
        self.num_steps = frames // num_envs
        self.slots: Slots | None = None

    def start(self) -> None:
        """Create the environments and begin an episode in each."""
        if self.slots is not None:
            return
        self.slots = make_env_slots(self.env, self.num_envs)
        shape = (self.num_steps, self.num_envs)
        self.obs = empty(self.slots.observation_space, (self.num_steps + 1, self.num_envs))
        self.reward, self.ended = np.empty(shape, np.float32), np.zeros((self.num_steps, 2, self.num_envs), bool)
        self.num_episodes = np.zeros(self.num_envs, np.int64)
        self.returns = np.zeros(self.num_envs)
        self._reset(range(self.num_envs), 0)

    def collect(self, weights: Weights, epsilon: float, iteration: int, collections: int) -> list[float]:
        """Collect frames, append them to the next replay shard, and return the returns of the episodes that ended."""
        self.start()
        assert self.slots is not None
        collection = iteration * collections + self.number
        greedy_actions = NumpyNetwork(weights, self.num_envs)
        action, is_greedy = self._sample_actions(epsilon, iteration)
        any_greedy = is_greedy.any(1).tolist()
        obs, reward, ended, all_slots = self.obs, self.reward, self.ended, range(self.num_envs)
        first_action, returns, final_obs = self.slots.action_space.start, [], []
        for step in range(self.num_steps):
            if any_greedy[step]:
                np.copyto(action[step], greedy_actions(obs[step]), where=is_greedy[step])
            self.slots.step(action[step] + first_action, all_slots, obs[step + 1], reward[step], ended[step])
            self.returns += reward[step]
            if 1 in ended[step].tobytes():
                ended_slots = np.flatnonzero(ended[step].any(0)).tolist()
                final_obs += [(step, slot, obs[step + 1, slot].copy()) for slot in ended_slots]
                returns += self.returns[ended_slots].tolist()
                self._reset(ended_slots, step + 1)
        self.writers[collection % len(self.writers)].append(self._transitions(action, final_obs), order=collection)
        obs[0] = obs[-1]
        return returns

    def _sample_actions(self, epsilon: float, iteration: int) -> tuple[np.ndarray, np.ndarray]:
        """Sample random actions for all steps, and which of them to replace by greedy ones; both [T, B]."""
        rng = np.random.default_rng(derive_seed(self.seed, Purpose.ACTIONS, self.number, iteration))
        shape = (self.num_steps, self.num_envs)
        return rng.integers(self.slots.action_space.n, size=shape), rng.random(shape) >= epsilon

    def _reset(self, slots: Sequence[int], row: int) -> None:
        seeds = [episode_seed(self.seed, self.number, slot, int(self.num_episodes[slot])) for slot in slots]
        self.slots.reset(slots, seeds, self.obs[row])
        self.num_episodes[slots] += 1
        self.returns[slots] = 0

    def _transitions(self, action: np.ndarray, final_obs: list[tuple[int, int, np.ndarray]]) -> dict[str, Any]:
        """Return the frames under TorchRL's names, one row each."""
        obs = self.obs.reshape(*self.obs.shape[:2], -1).astype(np.float32, copy=False)
        next_obs = obs[1:].copy()
        for step, slot, last_obs in final_obs:  # where `obs` has the first observation of the next episode
            next_obs[step, slot] = last_obs.ravel()
        num = action.size
        return {
            "observation": obs[:-1].reshape(num, -1),
            "action": action.reshape(num),
            "next": {
                "observation": next_obs.reshape(num, -1),
                "reward": self.reward.reshape(num, 1),
                "terminated": self.ended[:, 0].reshape(num, 1),
                "done": self.ended.any(1).reshape(num, 1),
            },
        }

    def close(self) -> None:
        """Close the environments."""
        if self.slots is not None:
            self.slots.close()


class CollectorGroup:
    """Several collectors in one worker."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self.collectors = {collector.number: collector for collector in collectors}

    def start(self) -> None:
        """Create all environments."""
        for collector in self.collectors.values():
            collector.start()

    def collect(self, number: int, *args: Any) -> list[float]:
        """Collect with the collector of this number; see `Collector.collect`."""
        return self.collectors[number].collect(*args)


class NumpyNetwork:
    """A Q-network of ReLU layers for a fixed number of observations: for few of them, many times faster than torch.

    Observations are columns, with a row of ones below them, so that biases are a column of the weights.
    """

    def __init__(self, weights: Weights, num_obs: int) -> None:
        self.weights = [np.column_stack(layer) for layer in weights]
        sizes = [self.weights[0].shape[1] - 1, *(len(weight) for weight in self.weights)]
        self.activations = [np.ones((size + 1, num_obs), np.float32) for size in sizes]

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Return the greedy action for each observation."""
        inputs, *layer_outputs = self.activations
        inputs[:-1] = obs.reshape(len(obs), -1).T
        for weight, outputs in zip(self.weights, layer_outputs, strict=True):
            np.dot(weight, inputs, outputs[:-1])
            if outputs is not layer_outputs[-1]:
                np.maximum(outputs[:-1], 0, out=outputs[:-1])
            inputs = outputs
        return inputs[:-1].argmax(0)


def make_env_slots(env: str, num: int) -> Slots:
    """Create a vector of environments whose episodes can be repeated from their seeds."""
    if num > 1:
        slots = make_slots(EnvSettings(env), num)
        if slots.repeats_from_seed:
            return slots
        slots.close()
    return make_slots(EnvSettings(env, vector="stepped"), num)  # for one environment faster than a native vector


def check_env(env: str) -> tuple[int, int]:
    """Return the size of an observation and the number of actions, or raise ConfigError if DQN cannot be used."""
    slots = make_env_slots(env, 1)
    obs_space, action_space = slots.observation_space, slots.action_space
    slots.close()
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(f"DQN needs discrete actions, and those of {env} are {action_space}. Choose another --env.")
    if not isinstance(obs_space, spaces.Box):
        raise ConfigError(
            f"the network needs array observations, and those of {env} are {obs_space}. Choose another --env."
        )
    return int(np.prod(obs_space.shape)), int(action_space.n)
