"""Losses and layers that sample from torch's global generator: seeded and saved; acting does not use dropout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.modes import is_plain
from raceway.algorithms import find_algorithm
from raceway.injection import injected
from raceway.ops import ComputeGradients
from raceway.rollouts.fragment_values import evaluate_fragment
from raceway.training.train import Training, resume, train
from tests.example_agents import example_actor, example_actor_critic
from tests.learner.test_loss_state import gradients

SETTINGS: dict[str, Any] = {
    "env": "cartpole", "engine": "inline", "num_envs": 2, "num_shards": 1, "fragment_steps": 8, "progress": False,
}  # fmt: skip


def dropout(observation_space: Any, action_space: Any) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2)), nn.Linear(4, 1)


def test_a_network_with_dropout_is_repeatable_and_resumes_exactly(tmp_path: Path) -> None:
    hashes = []
    for seed in range(2):
        torch.manual_seed(seed)  # of the user's program: it has no effect, and is not changed
        before = torch.get_rng_state()
        result = train("a2c", network=dropout, iterations=4, run_dir=tmp_path / str(seed), **SETTINGS)
        assert torch.equal(torch.get_rng_state(), before)
        hashes.append(result.summary["weights_sha256"])
    train("a2c", network=dropout, iterations=2, run_dir=tmp_path / "stopped", **SETTINGS)
    resumed = resume(tmp_path / "stopped", network=dropout, iterations=4, progress=False)
    assert {*hashes, resumed.summary["weights_sha256"]} == {hashes[0]}


def test_dropout_is_used_in_training_only() -> None:
    agent = example_actor_critic(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), dropout)
    obs = np.ones((3, 2, 4), np.float32)
    ended = np.zeros((3, 2), bool)
    batch = {
        "obs": obs, "action": np.zeros((3, 2), np.int64), "reward": np.zeros((3, 2), np.float32), "last_obs": obs[0],
        "terminated": ended, "truncated": ended, "final_obs": obs[0][:0],
    }  # fmt: skip
    first, again = (evaluate_fragment(agent, batch, 0.9).batch["log_prob"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert agent.training
    rows = torch.ones(50, 4)
    assert not torch.equal(agent.actor(rows, {})[0], agent.actor(rows, {})[0])


class GlobalLoss:
    """Samples from torch's global generator."""

    def __call__(self, agent: Any, batch: Any, *, random: torch.Generator = injected) -> Tensor:
        return agent.actor(batch["obs"], {})[0].sum() * torch.rand(())


def test_gradients_on_workers() -> None:
    one, two = ComputeGradients(GlobalLoss()), ComputeGradients(GlobalLoss())
    torch.manual_seed(1)
    first = gradients(one)
    torch.manual_seed(2)
    np.testing.assert_array_equal(first, gradients(two))
    restored = ComputeGradients(GlobalLoss())
    restored.restore(one.state())
    np.testing.assert_array_equal(gradients(one), gradients(restored))


@pytest.mark.parametrize("name", ["reinforce", "ppo", "dqn"])
def test_raceways_own_networks_do_not_sample(name: str) -> None:
    """Their training neither waits for the lock of the global generators nor saves their state."""
    algorithm = find_algorithm(name)
    training = Training(algorithm, replace(algorithm.settings(env="cartpole"), engine="inline"))
    assert is_plain(training.agent)
    assert training.learner.state()["global_random"] is None


def test_networks_that_may_sample() -> None:
    space = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    assert is_plain(example_actor(*space, lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(4, 2))))
    assert not is_plain(example_actor(*space, lambda *spaces: dropout(*spaces)[0]))
