"""Algorithms of continuous control learn the numbers that are known: the gain of a linear-quadratic regulator."""

from pathlib import Path

import numpy as np
import pytest

import raceway
from raceway.envs import LinearQuadratic

GAMMA = 0.9
DETERMINISTIC = {"noise": 0.5, "total_timesteps": 4000}
MANY_UPDATES = {"total_timesteps": 1200, "steps_per_update": 0.5, "actor_every": 2}


@pytest.mark.parametrize(
    ("name", "settings", "tolerance"),
    [
        ("sac", {"total_timesteps": 3000}, 0.1),
        ("tqc", {"total_timesteps": 3000, "num_quantiles": 10}, 0.1),
        ("droq", MANY_UPDATES, 0.1),
        ("redq", {**MANY_UPDATES, "num_critics": 4}, 0.1),
        ("crossq", {"total_timesteps": 2000, "critic_hidden": (64, 64)}, 0.15),
        ("td3", DETERMINISTIC, 0.15),
        ("ddpg", DETERMINISTIC, 0.15),
    ],
)
def test_the_gain_of_a_regulator(name: str, settings: dict, tolerance: float, tmp_path: Path) -> None:
    """Episodes are truncated, and the gain is that of the infinite horizon: values go on after them."""
    targets = {} if name == "crossq" else {"tau": 0.02}
    result = raceway.train(
        name, env="raceway/LinearQuadratic-v0", engine="inline", num_workers=1, seed=1, progress=False, gamma=GAMMA,
        hidden=(64, 64), lr=1e-3, batch_size=128, learning_starts=500, run_dir=tmp_path / "run", **targets, **settings,
    )  # fmt: skip
    states = np.linspace(-0.9, 0.9, 19, dtype=np.float32)[:, None]
    actions = np.array([result.policy.act(state) for state in states])
    gain = -(actions * states).sum() / (states**2).sum()
    assert gain == pytest.approx(LinearQuadratic().gain(GAMMA).item(), rel=tolerance)


def test_the_best_action_of_apex_ddpg(tmp_path: Path) -> None:
    """It is the observation. Prioritised samples learn the gain of a regulator less precisely than uniform ones."""
    result = raceway.train(
        "apex_ddpg", env="raceway/Identity-v0", engine="inline", num_workers=1, seed=1, progress=False, num_envs=8,
        num_shards=2, fragment_steps=4, hidden=(32, 32), lr=1e-3, batch_size=64, learning_starts=500, tau=0.02,
        steps_per_update=3, noise=0.7, total_timesteps=3000, run_dir=tmp_path / "run",
    )  # fmt: skip
    states = np.linspace(-0.9, 0.9, 19, dtype=np.float32)[:, None]
    actions = np.array([result.policy.act(state) for state in states])
    assert np.abs(actions - states).mean() < 0.15
