"""Algorithms of discrete actions learn the numbers that are known: Q-values of a chain, the distribution of a coin."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raceway
from raceway.envs import Chain, Coin

GAMMA = 0.9
COIN: dict[str, Any] = {"values": (0.0, 10.0, 20.0), "probabilities": (0.5, 0.25, 0.25)}
FRACTIONS = [0.125, 0.375, 0.625, 0.875]
HUBER_QUANTILES = [1 / 7, 0.6, 9.8, 20 - 3 / 7]
"""Where the derivative of the quantile Huber loss with κ = 1 is 0: within 1 of the quantiles 0, 0, 10, 20.

At τ = 1/8 and θ above 0 it is 7/8 · 1/2 · θ - 1/8 · 1/2, as the errors to 10 and 20 count as 1; likewise at 3/8. At 5/8
and θ below 10 it is 3/8 · 1/2 - 5/8 · 1/4 · (10 - θ) - 5/8 · 1/4. At 7/8 and θ below 20 it is 1/8 · 3/4 - 7/8 · 1/4 ·
(20 - θ).
"""


def trained_agent(name: str, path: Path, **settings: Any) -> Any:
    """Train, and return the agent."""
    shared: dict[str, Any] = {
        "num_envs": 8, "num_shards": 1, "fragment_steps": 4, "batch_size": 64, "learning_starts": 200,
        "hidden": (32, 32), "target_every": 50, "steps_per_update": 4, "gamma": GAMMA, "lr_end": 0.0, "seed": 1,
        "n_step": 1,
        "engine": "inline", "num_workers": 1, "progress": False, "run_dir": path / "run",
    }  # fmt: skip
    return raceway.train(name, **{**shared, **settings}).policy.agent


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dueling_dqn", {"epsilon": 1.0}),
        ("noisy_dqn", {}),
        ("rainbow", {"v_min": 0.0, "v_max": 1.0, "num_atoms": 11}),
    ],
)
def test_q_values_of_a_chain(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Of the best actions, which is where an algorithm without ε explores. Noise is left out."""
    chain = {"env": "raceway/Chain-v0", "env_kwargs": {"random_start": True}}
    agent = trained_agent(name, tmp_path, lr=3e-3, total_timesteps=8000, **chain, **settings)
    with torch.no_grad():
        q_values = agent.actor(torch.arange(5), {})[0].numpy()
    expected = Chain().q_values(GAMMA)[:5]
    columns = slice(0, 2) if name == "dueling_dqn" else slice(1, 2)
    np.testing.assert_allclose(q_values[:, columns], expected[:, columns], atol=0.05)
    policy = raceway.load(tmp_path / "run")
    assert [policy.act(state) for state in range(5)] == [1] * 5


def distribution_of(agent: Any) -> np.ndarray:
    """Return the distributions of both actions of the coin, [2, num_each]."""
    with torch.no_grad():
        outputs: np.ndarray = agent.distributions(torch.zeros(1, dtype=torch.int64))[0].numpy()
    return outputs


TOSSES = {"env": "raceway/Coin-v0", "env_kwargs": COIN, "epsilon": 1.0, "total_timesteps": 8000}


def test_the_quantiles_of_a_coin(tmp_path: Path) -> None:
    quantiles = distribution_of(trained_agent("qr_dqn", tmp_path, lr=1e-2, num_quantiles=4, **TOSSES))
    np.testing.assert_allclose(quantiles, [HUBER_QUANTILES] * 2, atol=0.5)
    np.testing.assert_allclose(quantiles, [Coin(**COIN).quantiles(FRACTIONS)] * 2, atol=1.2)


def test_any_quantiles_of_a_coin(tmp_path: Path) -> None:
    agent = trained_agent("iqn", tmp_path, lr=5e-3, num_action_quantiles=4, num_cosines=16, **TOSSES)
    with torch.no_grad():
        features = agent.features(torch.zeros(1, dtype=torch.int64))
        quantiles = agent.head.quantiles(features, torch.tensor([FRACTIONS]))[0].numpy()
    np.testing.assert_allclose(quantiles, [HUBER_QUANTILES] * 2, atol=1.5)


def test_the_probabilities_of_a_coin(tmp_path: Path) -> None:
    settings = {"num_atoms": 3, "v_min": 0.0, "v_max": 20.0}
    logits = distribution_of(trained_agent("c51", tmp_path, lr=3e-3, **settings, **TOSSES))
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(shares, [COIN["probabilities"]] * 2, atol=0.05)
