"""PQN: its loss and its targets by hand, and the Q-values that it learns."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raceway
from raceway.algorithms import pqn
from raceway.envs import Chain, Endless
from raceway.errors import ConfigError
from raceway.ops import AddQLambdaReturns

LEARNT = {
    "engine": "inline", "num_workers": 1, "seed": 1, "progress": False, "num_envs": 8, "num_shards": 1, "hidden": (32,),
    "fragment_steps": 16, "num_minibatches": 4, "lr": 3e-3, "epsilon": 0.5, "epsilon_steps": 2000,
}  # fmt: skip


def test_the_loss_by_hand() -> None:
    agent = SimpleNamespace(q_values=lambda batch: batch["obs"], action_index=lambda batch: batch["action"])
    batch = {
        "obs": torch.tensor([[1.0, 9.0], [9.0, 0.5]]), "action": torch.tensor([0, 1]),
        "q_target": torch.tensor([3.0, 0.0]),
    }  # fmt: skip
    loss, metrics = pqn.loss(agent, batch)  # type: ignore[arg-type]
    assert float(loss) == pytest.approx(((1 - 3) ** 2 + 0.5**2) / 2)
    assert float(metrics["q_values"]) == 0.75


def fixed_agent() -> Any:
    """Return an agent whose observations are its Q-values."""
    agent = nn.Module()
    agent.actor = SimpleNamespace(recurrent=False)  # type: ignore[assignment]
    agent.q_values = lambda batch: batch["obs"]  # type: ignore[assignment]
    return agent


def test_the_targets_of_a_fragment_with_an_end_and_a_truncation_by_hand() -> None:
    """Two slots of three steps; γ = λ = 0.5, and rewards are halved."""
    max_q = np.array([[1.0, 2.0], [4.0, 6.0], [2.0, 8.0]], np.float32)  # [T, B]
    batch: Any = {
        "obs": np.stack([max_q, max_q - 1], -1),
        "action": np.array([[0, 1], [1, 0], [1, 1]]),
        "reward": np.array([[2.0, 2.0], [4.0, 4.0], [6.0, 8.0]], np.float32),
        "terminated": np.array([[False, False], [True, False], [False, False]]),
        "truncated": np.array([[False, False], [False, True], [False, False]]),
        "last_obs": np.array([[4.0, 3.0], [0.0, 2.0]], np.float32),  # max 4 and 2
        "final_obs": np.array([[3.0, 10.0]], np.float32),  # of the truncated episode: max 10
    }
    rows = AddQLambdaReturns(gamma=0.5, lam=0.5, reward_scale=0.5)(batch, actor=SimpleNamespace(agent=fixed_agent()))
    # First slot, from its last step: 3 + 0.5 · 4 = 5. Terminated: 2. 1 + 0.5 (0.5 · 2 + 0.5 · 4) = 2.5.
    # Second slot: 4 + 0.5 · 2 = 5. Truncated: 2 + 0.5 · 10 = 7. 1 + 0.5 (0.5 · 7 + 0.5 · 6) = 4.25.
    assert rows["q_target"].tolist() == [2.5, 4.25, 2.0, 7.0, 5.0, 5.0]
    assert rows["action"].tolist() == [0, 1, 1, 0, 1, 1]
    np.testing.assert_array_equal(rows["obs"][:, 0], max_q.ravel())


def test_a_step_that_is_terminated_and_truncated_has_nothing_to_bootstrap() -> None:
    batch: Any = {
        "obs": np.ones((1, 1, 2), np.float32), "action": np.zeros((1, 1), np.int64),
        "reward": np.full((1, 1), 3, np.float32), "terminated": np.array([[True]]), "truncated": np.array([[True]]),
        "last_obs": np.ones((1, 2), np.float32), "final_obs": np.full((1, 2), 8, np.float32),
    }  # fmt: skip
    assert AddQLambdaReturns(0.5, 0.5).targets(fixed_agent(), batch).tolist() == [[3.0]]


def test_targets_are_computed_once_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[float] = []
    targets = AddQLambdaReturns.targets

    def record(self: AddQLambdaReturns, agent: Any, batch: Any) -> torch.Tensor:
        result = targets(self, agent, batch)
        computed.append(float(result.sum()))
        return result

    trained: list[torch.Tensor] = []

    def loss(agent: Any, batch: Any) -> Any:
        trained.append(batch["q_target"].clone())
        return pqn_loss(agent, batch)

    pqn_loss = pqn.loss
    monkeypatch.setattr(AddQLambdaReturns, "targets", record)
    monkeypatch.setattr(pqn, "loss", loss)
    settings = {**LEARNT, "num_shards": 2, "num_epochs": 3, "num_minibatches": 2, "compile_losses": False}
    raceway.train("pqn", env="raceway/Chain-v0", iterations=2, run_dir=tmp_path / "run", **settings)
    assert len(computed) == 2 * 2  # of every shard in every round
    sums = torch.stack(trained).reshape(2, 3, -1).sum(-1)  # [rounds, epochs]
    for round_sums, total in zip(sums.tolist(), (sum(computed[:2]), sum(computed[2:])), strict=True):
        assert round_sums == pytest.approx([total] * 3, rel=1e-5)


def test_the_values_of_states_that_end(tmp_path: Path) -> None:
    """With n steps left the value is (1 - γⁿ)/(1 - γ), whatever λ."""
    result = raceway.train(
        "pqn", env="raceway/Endless-v0", env_kwargs={"ending": "terminated", "show_remaining": True, "length": 5},
        gamma=0.8, total_timesteps=12_000, run_dir=tmp_path / "run", **LEARNT,
    )  # fmt: skip
    remaining = np.arange(1, 6)
    expected = Endless("terminated").value(remaining, 0.8)[:, None].repeat(2, 1)
    np.testing.assert_allclose(q_values(result, remaining), expected, rtol=0.05)


def test_the_value_of_what_is_truncated(tmp_path: Path) -> None:
    """The value of a reward of 1 forever is 1/(1 - γ)."""
    result = raceway.train(
        "pqn", env="raceway/Endless-v0", env_kwargs={"length": 5}, gamma=0.8, total_timesteps=8000,
        run_dir=tmp_path / "run", **LEARNT,
    )  # fmt: skip
    np.testing.assert_allclose(q_values(result, np.array([0])), Endless().value(1, 0.8), rtol=0.05)


def test_the_q_values_of_a_chain(tmp_path: Path) -> None:
    """With λ = 0 exploration does not bias them. Episodes are truncated after three steps, and values go on."""
    result = raceway.train(
        "pqn", env="raceway/Chain-v0", env_kwargs={"random_start": True, "max_episode_steps": 3}, gamma=0.7, lam=0.0,
        total_timesteps=12_000, run_dir=tmp_path / "run", **LEARNT,
    )  # fmt: skip
    states = np.arange(5)
    np.testing.assert_allclose(q_values(result, states), Chain().q_values(0.7)[:5], atol=0.05)


def q_values(result: Any, states: np.ndarray) -> np.ndarray:
    """Return the learnt Q-values of states, [N, num_actions]."""
    with torch.no_grad():
        learnt: np.ndarray = result.policy.agent.q_values({"obs": torch.from_numpy(states)}).numpy()
    return learnt


def test_a_recurrent_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="pqn cannot train a recurrent network"):
        raceway.train("pqn", env="cartpole", network="lstm", engine="inline", iterations=1, progress=False)
