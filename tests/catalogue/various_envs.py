"""Environments whose observations are nested, or images, with discrete or continuous actions; and networks for them."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

NESTED = spaces.Dict({"place": spaces.Box(-1, 1, (3,), np.float32), "room": spaces.Discrete(4)})
EPISODE_STEPS = 10
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)


class Various(gym.Env[Any, Any]):
    """Random observations for ten steps; half of the episodes terminate, the others are truncated. Tasks change
    nothing.

    Args:
        images: whether observations are images, instead of nested.
        continuous: whether actions are continuous, instead of the numbers 2 to 4.
    """

    def __init__(self, images: bool = False, continuous: bool = False) -> None:
        self.observation_space = IMAGE if images else NESTED
        self.action_space: Any = spaces.Box(-2, 1, (2,), np.float32) if continuous else spaces.Discrete(3, start=2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.terminates = 0, bool(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == EPISODE_STEPS
        return self._observe(), float(np.sum(action)), over and self.terminates, over and not self.terminates, {}

    def _observe(self) -> Any:
        if self.observation_space is IMAGE:
            return self.np_random.integers(256, size=IMAGE.shape, dtype=np.uint8)
        place = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"place": place, "room": int(self.np_random.integers(4))}

    def sample_tasks(self, num: int, seed: int) -> Any:
        return np.zeros(num)

    def set_task(self, task: Any) -> None:
        pass


class OwnNetwork(nn.Module):
    """A network of a user's own for nested observations, with one output for each action."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        super().__init__()
        num = action_space.n if isinstance(action_space, spaces.Discrete) else int(np.prod(action_space.shape))
        self.layers = nn.Sequential(nn.Linear(7, 8), nn.ELU(), nn.Linear(8, int(num)))
        self.initial_weight: Tensor
        self.register_buffer("initial_weight", self.layers[0].weight.detach().clone())

    def forward(self, obs: Any) -> Tensor:
        room = nn.functional.one_hot(obs["room"].long(), 4).float()
        return self.layers(torch.cat([obs["place"], room], -1))


class OwnMemory(nn.Module):
    """The same network, whose outputs grow with the number of steps."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        super().__init__()
        self.network = OwnNetwork(observation_space, action_space)

    def initial_state(self, num: int) -> dict[str, Tensor]:
        return {"steps": torch.zeros(num, 1)}

    def forward(self, obs: Any, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.network(obs) * (1 + state["steps"] / 10), {"steps": state["steps"] + 1}
