"""SlateQ: the decomposition by hand, the item that a row trains, and the values of a recommender that are known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from raceway import load
from raceway.agents import Spaces, build_agent
from raceway.agents.slates import slate_network
from raceway.algorithms import find_algorithm
from raceway.algorithms.slateq import Config, loss
from raceway.envs import Slates
from raceway.errors import ConfigError
from raceway.rl.slates import all_slates, slate_values
from raceway.training.train import train

ENV = Slates()
SPACES = Spaces(ENV.observation_space, ENV.action_space)


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_decomposition_by_hand() -> None:
    slates = all_slates(3, 2)
    assert slates.tolist() == [[0, 1], [0, 2], [1, 2]]
    values = torch.tensor([[4.0, 2.0, -1.0, 1.0], [4.0, 2.0, -1.0, 1.0]])
    scores = torch.tensor([[1.0, 2.0, 3.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
    expected = [[(4 + 4 + 1) / 4, (4 - 3 + 1) / 5, (4 - 3 + 1) / 6], [3, 1.5, 0.5]]
    np.testing.assert_allclose(slate_values(values, scores, torch.from_numpy(slates)), expected, rtol=1e-6)


def test_the_agent_has_values_of_slates_from_those_of_items() -> None:
    agent = build_agent(slate_network, SPACES, Config(hidden=(8,)), 0)
    obs = {
        "user": torch.tensor([0, 3]), "chosen": torch.tensor([1, 10]),
        "choice_scores": torch.from_numpy(np.stack([ENV.scores, 2 * ENV.scores])),
    }  # fmt: skip
    items = agent.item_values(obs).detach()
    assert items.shape == (2, 11)
    np.testing.assert_allclose(
        agent.q_values({"obs": obs}).detach(), items.numpy() @ ENV.choice_probabilities.T, rtol=1e-4
    )
    other = {**obs, "chosen": torch.tensor([4, 4])}
    assert torch.equal(agent.q_values({"obs": other}), agent.q_values({"obs": obs})), "it is no part of the state"


def test_the_loss_is_that_of_the_item_that_was_chosen() -> None:
    items = torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]], requires_grad=True)
    batch = {
        "obs": {}, "next_obs": {"chosen": torch.tensor([1, 2])}, "action": torch.tensor([0, 0]),
        "reward": torch.tensor([0.5, 1.0]), "discount": torch.tensor([0.5, 0.0]),
    }  # fmt: skip
    target = SimpleNamespace(next_q_values=lambda batch: torch.tensor([[3.0, 2.0], [9.0, 9.0]]))
    value, metrics = loss(SimpleNamespace(item_values=lambda obs: items, target=target), batch)  # type: ignore[arg-type]
    # Item 1 has the value 2 and the target 0.5 + 0.5 · 3; none has 5 and the target 1. Huber: 0, and 4 - 1/2.
    assert value.item() == pytest.approx((0 + 3.5) / 2)
    assert metrics["q_values"].item() == 3.5
    value.backward()
    assert items.grad is not None
    np.testing.assert_allclose(items.grad, [[0, 0, 0], [0, 0, 0.5]])


class Terminating(Slates):
    """Every step terminates the session."""

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, True, False, {}


def test_what_was_chosen_last_is_known_when_a_session_terminates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reward of every row is that of the item in its own last observation, not of the next session's first."""
    algorithm, seen = find_algorithm("slateq"), []
    original = loss

    def spy(agent: Any, batch: Any) -> Any:
        parts = {"chosen": batch["next_obs"]["chosen"], "user": batch["obs"]["user"]}
        parts |= {name: batch[name] for name in ("reward", "discount")}
        seen.append({name: part.numpy().copy() for name, part in parts.items()})
        return original(agent, batch)

    monkeypatch.setattr("raceway.algorithms.slateq.loss", spy)
    train(algorithm.name, env=Terminating, total_timesteps=200, learning_starts=50, engine="inline", progress=False,
          compile_losses=False)  # fmt: skip
    rows = {name: np.concatenate([batch[name] for batch in seen]) for name in seen[0]}
    assert not rows["discount"].any()
    assert len(np.unique(rows["chosen"])) > 5
    np.testing.assert_allclose(rows["reward"], ENV.engagement[rows["chosen"]] * (rows["user"] + 1) / 5, rtol=1e-6)


@pytest.mark.parametrize(
    ("obs_space", "action_space", "message"),
    [
        (spaces.Box(-1, 1, (3,)), SPACES.action, "slates need a Dict of observations"),
        (spaces.Dict({**SPACES.observation.spaces, "chosen": spaces.Discrete(10)}), SPACES.action, "Discrete\\(n"),  # type: ignore[attr-defined]
        (SPACES.observation, spaces.Discrete(44), "there are 45 slates of 2 of 10 items"),
    ],
)
def test_environments_without_slates_are_refused(obs_space: Any, action_space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_agent(slate_network, Spaces(obs_space, action_space), Config(), 0)


def test_it_learns_the_values_of_items_and_the_best_slates() -> None:
    """Of the items on slates that are played: ε is 1, so that all are."""
    settings: dict[str, Any] = {
        "gamma": 0.8, "epsilon": 1.0, "hidden": (64,), "lr": 3e-3, "lr_end": 0.0, "batch_size": 64, "target_every": 50,
        "steps_per_update": 4, "learning_starts": 200, "num_envs": 8, "num_shards": 1,
    }  # fmt: skip
    result = train("slateq", total_timesteps=12_000, engine="inline", seed=1, progress=False, run_dir="run", **settings)
    obs = {"user": np.arange(5), "chosen": np.full(5, 10), "choice_scores": np.tile(ENV.scores, (5, 1))}
    with torch.no_grad():
        values = result.policy.agent.item_values({name: torch.from_numpy(part) for name, part in obs.items()}).numpy()
    np.testing.assert_allclose(values, ENV.item_values(0.8), atol=0.25)
    chosen = load("run").act(obs)
    regret = ENV.slate_values(0.8).max(1) - ENV.slate_values(0.8)[np.arange(5), chosen]
    assert regret.max() < 0.1


# The environment.


def test_values_of_the_environment_by_hand() -> None:
    """One item that lowers a satisfaction of two levels and pays 1 or 1/2, with a score of 1 as nothing has."""
    env = Slates(slate_size=1, num_levels=2, scores=(1.0,), engagement=(1.0,), drift=(-1,), length=2)
    # Below: V₀ = ½ (½ + ½ V₀) + ½ · ½ V₀ = ½. Above: V₁ = ½ (1 + ½ V₀) + ½ · ½ V₁ = 5/6.
    np.testing.assert_allclose(env.item_values(0.5), [[0.5 + 0.25, 0.25], [1 + 0.25, 5 / 12]])
    np.testing.assert_allclose(env.slate_values(0.5), [[0.5], [5 / 6]])
    # Two steps: below ¼ each; above ½, then ¼ or ½.
    assert env.mean_return(0.5) == pytest.approx((0.5 + 0.5 + 0.375) / 2)


def test_returns_of_the_environment_are_those_of_its_slates() -> None:
    assert ENV.mean_return(0.95) > 2 * ENV.mean_return(0.0)
    env, best = gym.make("raceway/Slates-v0"), ENV.slate_values(0.95).argmax(1)
    returns = []
    for seed in range(300):
        obs, _ = env.reset(seed=seed)
        total, truncated = 0.0, False
        while not truncated:
            obs, reward, terminated, truncated, _ = env.step(best[obs["user"]])
            total += float(reward)
            assert not terminated
        returns.append(total)
    assert np.mean(returns) == pytest.approx(ENV.mean_return(0.95), rel=0.05)
    np.testing.assert_allclose(ENV.choice_probabilities.sum(1), 1)
