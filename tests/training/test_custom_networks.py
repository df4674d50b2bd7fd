"""A user's network with every algorithm: called with rows, trained, and with its memory or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.algorithms import find_algorithm
from raceway.errors import ConfigError
from raceway.loaded_policy import load
from raceway.training.train import train

FRAGMENTS = {"num_envs": 2, "fragment_steps": 8, "iterations": 2, "env": "cartpole"}
REPLAY = {"num_envs": 2, "learning_starts": 8, "batch_size": 4, "total_timesteps": 40, "env": "cartpole"}
SETTINGS: dict[str, dict[str, Any]] = {
    "reinforce": {"num_envs": 2, "episodes_per_iter": 2, "iterations": 2, "env": "cartpole"},
    "maml": {"num_envs": 4, "iterations": 1, "num_shards": 2},
    "a2c": FRAGMENTS,
    "a3c": FRAGMENTS,
    "ppo": {**FRAGMENTS, "num_minibatches": 2, "num_epochs": 2},
    "impala": {**FRAGMENTS, "batch_steps": 32},
    "appo": {**FRAGMENTS, "batch_steps": 32},
    "impact": {**FRAGMENTS, "batch_steps": 32},
    "dqn": REPLAY,
    "apex": REPLAY,
    "sac": {**REPLAY, "num_envs": 1, "env": "Pendulum-v1"},
    "droq": {**REPLAY, "num_envs": 1, "env": "Pendulum-v1"},
    "redq": {**REPLAY, "num_envs": 1, "env": "Pendulum-v1"},
    "crossq": {**REPLAY, "num_envs": 1, "env": "Pendulum-v1", "critic_hidden": (8,)},
}


def num_outputs(space: spaces.Space) -> int:
    return int(space.n) if isinstance(space, spaces.Discrete) else int(np.prod(space.shape or ()))


class Network(nn.Module):
    """Flattens first, and insists on rows."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        super().__init__()
        self.shape = observation_space.shape or ()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(self.shape)), num_outputs(action_space)))

    def forward(self, obs: Tensor) -> Tensor:
        assert obs.shape[1:] == self.shape
        return self.layers(obs)


class Recurrent(nn.Module):
    """Remembers, and insists on rows."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        super().__init__()
        self.shape = observation_space.shape or ()
        self.cell = nn.GRUCell(int(np.prod(self.shape)), 4)
        self.head = nn.Linear(4, num_outputs(action_space))

    def initial_state(self, num: int) -> dict[str, Tensor]:
        return {"hidden": torch.zeros(num, 4)}

    def forward(self, obs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        assert obs.shape[1:] == self.shape
        hidden = self.cell(obs, state["hidden"])
        return self.head(hidden), {"hidden": hidden}


def trained(name: str, network: Any, path: Path, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights before and after a short training."""
    settings = {"num_shards": 1, "engine": "inline", "progress": False, **SETTINGS[name], **more}
    result = train(name, network=network, run_dir=path, **settings)
    return load(path, 0, network=network).weights(), result.policy.weights()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_network_is_called_with_rows_and_trained(name: str, tmp_path: Path) -> None:
    before, after = trained(name, Network, tmp_path / "run")
    weight = "actor.network.layers.1.weight"
    assert not np.array_equal(before[weight], after[weight])


@pytest.mark.parametrize("name", SETTINGS)
def test_a_recurrent_network_is_trained_with_its_memory_or_refused(name: str, tmp_path: Path) -> None:
    """Without its memory, the weights on the earlier state would get no gradient."""
    if not find_algorithm(name).recurrent:
        with pytest.raises(ConfigError, match=f"{name} cannot train a recurrent network"):
            trained(name, Recurrent, tmp_path / "run")
        return
    more = {"fragment_steps": 4, "sequence_steps": 4, "burn_in": 0} if name == "dqn" else {}
    before, after = trained(name, Recurrent, tmp_path / "run", **more)
    weight = "actor.network.cell.weight_hh"
    assert not np.array_equal(before[weight], after[weight])
