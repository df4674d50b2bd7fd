"""Rollouts with image observations keep the features of the network, from which fragments are evaluated."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from raceway.envs import SteppedSlots
from raceway.rollouts.collector import Collector
from raceway.rollouts.fragment_values import evaluate_fragment
from tests.example_agents import example_actor_critic

IMAGES = spaces.Box(0, 255, (1, 36, 36), np.uint8)


class Noise(gym.Env):
    """Observations are random images; every third step truncates the episode."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def _observation(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        obs = self.observation_space.sample()
        if isinstance(obs, dict):
            obs["action_mask"][0] = 1
        return obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observation(), 1.0, False, self.steps == 3, {}


MASKED = spaces.Dict({"observation": IMAGES, "action_mask": spaces.Box(0, 1, (3,), np.int8)})


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [(IMAGES, spaces.Discrete(3)), (IMAGES, spaces.Box(-1, 1, (2,), np.float32)), (MASKED, spaces.Discrete(3))],
    ids=["discrete", "box", "masked"],
)
def test_a_fragment_is_evaluated_from_the_features_of_acting(observation_space: Any, action_space: Any) -> None:
    slots = SteppedSlots(lambda: Noise(observation_space, action_space), 2)
    agent = example_actor_critic(observation_space, action_space, hidden=(16,))
    fragment = Collector(slots, agent.actor, seed=0, shard=0, keep_network_outputs=True).fragment(5)
    assert fragment["features"].shape == (5, 2, 16)
    actual = evaluate_fragment(agent, fragment, 0.9)
    expected = evaluate_fragment(agent, {name: part for name, part in fragment.items() if name != "features"}, 0.9)
    assert "features" not in actual.batch
    np.testing.assert_allclose(actual.batch["log_prob"], expected.batch["log_prob"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actual.values, expected.values, rtol=1e-4, atol=1e-5)
    without_values = evaluate_fragment(agent, fragment, 0.9, with_values=False)
    np.testing.assert_array_equal(without_values.batch["log_prob"], actual.batch["log_prob"])
