"""Playing: environments that step together, and the Q-network in numpy. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from raceway.envs import EnvSettings, Purpose, Slots, make_slots, seed_of, seed_of_episode
from raceway.errors import ConfigError
from raceway.rl import empty

Weights = list[tuple[np.ndarray, np.ndarray]]
"""The weights and biases of a network of ReLU layers."""


class Writer(Protocol):
    """What frames are appended to: an `Appender`, or a storage itself."""

    def append(self, batch: Any, order: int = 0) -> int: ...


class Collector:
    """One of the collections of an iteration: its environments, which it goes on with from one to the next.

    Args:
        env: Gymnasium's id.
        num_envs: environments that step together.
        frames: to play in one collection.
        writers: one for every replay shard. Collections go to them in turn.
        seed: of actions and episodes.
        number: which collection of each iteration this is.
    """

    def __init__(
        self, env: str, *, num_envs: int, frames: int, writers: Sequence[Writer], seed: int, number: int
    ) -> None:
        self.env, self.num_envs, self.writers, self.seed, self.number = env, num_envs, writers, seed, number
        self.num_steps = frames // num_envs
        self.slots: Slots | None = None

    def start(self) -> None:
        """Make the environments and begin an episode in each."""
        if self.slots is not None:
            return
        self.slots = make_env_slots(self.env, self.num_envs)
        shape = (self.num_steps, self.num_envs)
        self.obs = empty(self.slots.observation_space, (self.num_steps + 1, self.num_envs))
        self.reward, self.ended = np.empty(shape, np.float32), np.zeros((self.num_steps, 2, self.num_envs), bool)
        self.episode = np.zeros(self.num_envs, np.int64)
        self.returns = np.zeros(self.num_envs)
        self._begin(range(self.num_envs), 0)

    def collect(self, weights: Weights, epsilon: float, iteration: int, collections: int) -> list[float]:
        """Play on, append the frames to the shard whose turn it is, and return the returns of episodes that ended."""
        self.start()
        assert self.slots is not None
        turn = iteration * collections + self.number
        greedy = NumpyNetwork(weights, self.num_envs)
        action, follows = self._draw(epsilon, iteration)
        chooses = follows.any(1).tolist()
        obs, reward, ended, every = self.obs, self.reward, self.ended, range(self.num_envs)
        first, finished, final = self.slots.action_space.start, [], []
        for now in range(self.num_steps):
            if chooses[now]:
                np.copyto(action[now], greedy(obs[now]), where=follows[now])
            self.slots.step(action[now] + first, every, obs[now + 1], reward[now], ended[now])
            self.returns += reward[now]
            if 1 in ended[now].tobytes():
                over = np.flatnonzero(ended[now].any(0)).tolist()
                final += [(now, slot, obs[now + 1, slot].copy()) for slot in over]
                finished += self.returns[over].tolist()
                self._begin(over, now + 1)
        self.writers[turn % len(self.writers)].append(self._transitions(action, final), order=turn)
        obs[0] = obs[-1]
        return finished

    def _draw(self, epsilon: float, iteration: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw random actions for all steps, and where greedy ones take their place."""
        random = np.random.default_rng(seed_of(self.seed, Purpose.ACTIONS, self.number, iteration))
        shape = (self.num_steps, self.num_envs)
        return random.integers(self.slots.action_space.n, size=shape), random.random(shape) >= epsilon

    def _begin(self, slots: Sequence[int], row: int) -> None:
        seeds = [seed_of_episode(self.seed, self.number, slot, int(self.episode[slot])) for slot in slots]
        self.slots.reset(slots, seeds, self.obs[row])
        self.episode[slots] += 1
        self.returns[slots] = 0

    def _transitions(self, action: np.ndarray, final: list[tuple[int, int, np.ndarray]]) -> dict[str, Any]:
        """Return the frames as TorchRL names them, one row each."""
        seen = self.obs.reshape(*self.obs.shape[:2], -1).astype(np.float32, copy=False)
        following = seen[1:].copy()
        for now, slot, obs in final:  # the row has the first observation of the next episode
            following[now, slot] = obs.ravel()
        num = action.size
        return {
            "observation": seen[:-1].reshape(num, -1),
            "action": action.reshape(num),
            "next": {
                "observation": following.reshape(num, -1),
                "reward": self.reward.reshape(num, 1),
                "terminated": self.ended[:, 0].reshape(num, 1),
                "done": self.ended.any(1).reshape(num, 1),
            },
        }

    def close(self) -> None:
        """Close the environments."""
        if self.slots is not None:
            self.slots.close()


class Collectors:
    """Several collectors in one worker."""

    def __init__(self, members: Sequence[Collector]) -> None:
        self.members = {member.number: member for member in members}

    def start(self) -> None:
        """Make all environments."""
        for member in self.members.values():
            member.start()

    def collect(self, number: int, *args: Any) -> list[float]:
        """Have one of them collect."""
        return self.members[number].collect(*args)


class NumpyNetwork:
    """A network of ReLU layers for so many observations at once: for few, many times faster than torch.

    Observations are columns, with a row of ones below them, so that biases are a column of the weights.
    """

    def __init__(self, weights: Weights, num: int) -> None:
        self.weights = [np.column_stack(layer) for layer in weights]
        sizes = [self.weights[0].shape[1] - 1, *(len(weight) for weight in self.weights)]
        self.columns = [np.ones((size + 1, num), np.float32) for size in sizes]

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Return the greedy action for each observation."""
        first, *others = self.columns
        first[:-1] = obs.reshape(len(obs), -1).T
        before = first
        for weight, after in zip(self.weights, others, strict=True):
            np.dot(weight, before, after[:-1])
            if after is not others[-1]:
                np.maximum(after[:-1], 0, out=after[:-1])
            before = after
        return before[:-1].argmax(0)


def make_env_slots(env: str, num: int) -> Slots:
    """Make environments that step together and whose episodes can be played again from their seeds."""
    if num > 1:
        slots = make_slots(EnvSettings(env), num)
        if slots.repeats:
            return slots
        slots.close()
    return make_slots(EnvSettings(env, vector="stepped"), num)  # for one, faster than a vector


def check_env(env: str) -> tuple[int, int]:
    """Return the sizes of observations and the number of actions, or raise ConfigError if DQN cannot play it."""
    slots = make_env_slots(env, 1)
    seen, action = slots.observation_space, slots.action_space
    slots.close()
    if not isinstance(action, spaces.Discrete):
        raise ConfigError(f"DQN chooses among discrete actions, and those of {env} are {action}. Choose another --env.")
    if not isinstance(seen, spaces.Box):
        raise ConfigError(f"the network takes arrays, and observations of {env} are {seen}. Choose another --env.")
    return int(np.prod(seen.shape)), int(action.n)
