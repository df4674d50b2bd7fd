"""SAC with discrete actions: the losses by hand, masks, the target entropy, and the soft policy of a bandit."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import raceway
from raceway.agents import Categorical, Spaces, build_agent
from raceway.agents.builders import soft_actor_critic
from raceway.agents.soft_actor_critic import DiscreteSoftActorCritic
from raceway.algorithms.sac import Config, actor_loss, critics_loss, explorer, temperature_loss
from raceway.envs import SoftBandit
from raceway.errors import ConfigError
from raceway.learner.learner import Learner
from raceway.learner.objectives import Objective, Target

OBS = spaces.Box(-1, 1, (3,), np.float32)
MASKED = spaces.Dict({"observation": OBS, "action_mask": spaces.Box(0, 1, (4,), np.int8)})
OBJECTIVES = {
    name: Objective(loss=loss)
    for name, loss in [("critics", critics_loss), ("actor", actor_loss), ("temperature", temperature_loss)]
}


class Fixed:
    """An agent with two actions, numbered from 3, and given probabilities, Q-values and temperature."""

    q_values = DiscreteSoftActorCritic.q_values
    soft_value = DiscreteSoftActorCritic.soft_value
    action_index = DiscreteSoftActorCritic.action_index

    def __init__(self, probability: float, q_values: Any, target_q_values: Any, alpha: float) -> None:
        def actor(obs: Any, state: Any) -> Any:
            return torch.tensor([[probability, 1 - probability]]).log().expand(len(obs), 2), state

        def constant(values: Any) -> Any:
            return lambda obs: torch.tensor(values)[:, None].expand(2, len(obs), 2)

        actor.distribution = Categorical(2, start=3)  # type: ignore[attr-defined]
        actor.network_obs = lambda obs: obs  # type: ignore[attr-defined]
        self.actor, self.critics = actor, constant(q_values)
        self.target = SimpleNamespace(critics=constant(target_q_values))
        log_alpha = torch.tensor(math.log(alpha))
        self.temperature = SimpleNamespace(log_alpha=log_alpha, alpha=log_alpha.exp(), target_entropy=0.3)


def test_losses_by_hand() -> None:
    fixed: Any = Fixed(0.25, [[1.0, 2.0], [3.0, 0.0]], [[4.0, 6.0], [5.0, 2.0]], alpha=0.2)
    batch = {
        "obs": torch.zeros(2, 3), "next_obs": torch.zeros(2, 3), "action": torch.tensor([3, 4]),
        "reward": torch.tensor([1.0, 0.0]), "discount": torch.tensor([0.5, 0.0]),
    }  # fmt: skip
    random = torch.Generator()
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    # Minima of the target critics: 4 and 2. The soft value of s': 0.25 · 4 + 0.75 · 2 + 0.2 H = 2.5 + 0.2 H.
    target = 1 + 0.5 * (2.5 + 0.2 * entropy)
    # Q-values of the actions: 1 and 3 of the first one, 2 and 0 of the second one, whose target is 0.
    expected = 0.5 * np.mean([(1 - target) ** 2 + (3 - target) ** 2, 2.0**2 + 0.0**2])
    loss, metrics = critics_loss(fixed, batch, random=random)
    assert float(loss) == pytest.approx(expected)
    assert float(metrics["q_values"]) == pytest.approx((1 + 3 + 2 + 0) / 4)
    # Minima of the critics: 1 and 0. The soft value of s: 0.25 · 1 + 0.75 · 0 + 0.2 H.
    loss, metrics = actor_loss(fixed, batch, random=random)
    assert float(loss) == pytest.approx(-(0.25 + 0.2 * entropy))
    assert float(metrics["entropy"]) == pytest.approx(entropy)
    assert float(temperature_loss(fixed, batch)[0]) == pytest.approx(-math.log(0.2) * (0.3 - entropy))


def example_batch(num: int, num_actions: int, mask: np.ndarray | None = None, start: int = 0) -> Any:
    random = np.random.default_rng(0)

    def observations() -> Any:
        obs = random.normal(size=(num, 3)).astype(np.float32)
        return obs if mask is None else {"observation": obs, "action_mask": np.tile(mask, (num, 1))}

    allowed = np.arange(num_actions) if mask is None else np.flatnonzero(mask)
    return {
        "obs": observations(), "next_obs": observations(), "action": random.choice(allowed, num) + start,
        "reward": random.normal(size=num).astype(np.float32), "discount": np.full(num, 0.9, np.float32),
    }  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
def test_masked_actions_have_no_probability_and_gradients_are_numbers(compiled: bool) -> None:
    trained = build_agent(soft_actor_critic, Spaces(MASKED, spaces.Discrete(4, start=2)), Config(hidden=(8,)), 0)
    learner = Learner(trained, 1e-2, seed=1, compiled=compiled)
    batch = example_batch(16, 4, np.array([1, 0, 1, 0], np.int8), start=2)
    for _ in range(5):
        metrics = learner.train(OBJECTIVES, batch, targets=[Target("critics", tau=0.1)]).metrics
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(np.isfinite(array).all() for array in trained.weights().values())
    assert 0 < metrics["entropy"] <= math.log(2) + 1e-6, "of two actions"
    if compiled:
        assert learner._compiled_losses is not None
        assert not learner._compiled_losses.refused
    probabilities = trained.actor.outputs(batch["obs"], {})[0]
    assert set(trained.actor.distribution.sample(probabilities, np.random.default_rng(0))) <= {2, 4}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_trains_its_own_part_only(name: str) -> None:
    trained = build_agent(soft_actor_critic, Spaces(OBS, spaces.Discrete(3)), Config(hidden=(8,)), 0)
    learner = Learner(trained, 1e-2, seed=1)
    before = {key: value.detach().clone() for key, value in trained.named_parameters()}
    batch = example_batch(12, 3) | {"new_log_prob": np.zeros(12, np.float32)}
    learner.train({name: OBJECTIVES[name]}, batch, targets=[Target("critics", tau=0.1)])
    for key, value in trained.named_parameters():
        assert torch.equal(value, before[key]) != key.startswith(f"{name}."), key


def test_the_first_actions_are_uniform_unless_there_is_a_mask() -> None:
    cfg = Config(learning_starts=100, num_envs=4)
    plain = explorer(Spaces(OBS, spaces.Discrete(3, start=5)), cfg)
    actions = plain.choose_without_outputs(24, 3000, np.random.default_rng(0))
    assert actions is not None
    assert np.bincount(actions).tolist() == pytest.approx([0, 0, 0, 0, 0, 1000, 1000, 1000], abs=100)
    assert plain.choose_without_outputs(25, 4, np.random.default_rng(0)) is None
    masked = explorer(Spaces(MASKED, spaces.Discrete(4)), cfg)
    assert masked.choose_without_outputs(0, 4, np.random.default_rng(0)) is None


def test_a_target_entropy_of_a_fixed_temperature_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"target_entropy 0\.1 has no effect: with temperature_lr 0"):
        Config(temperature_lr=0, target_entropy=0.1)


def test_a_target_entropy_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"at most log 2 = 0\.693, and target_entropy is 0\.7.* such as 0\.21"):
        build_agent(soft_actor_critic, Spaces(OBS, spaces.Discrete(2)), Config(target_entropy=0.7), 0)
    built: Any = build_agent(soft_actor_critic, Spaces(OBS, spaces.Discrete(5)), Config(), 0)
    assert 0.2 * math.log(5) <= built.temperature.target_entropy <= 0.5 * math.log(5)


@pytest.mark.parametrize("num", [0, 1, 3])
def test_critics_of_a_user(num: int) -> None:
    def network(*_: Any) -> Any:
        return [nn.Linear(3, 4), *(nn.Sequential(nn.Linear(3, 4)) for _ in range(num))]

    built: Any = build_agent(soft_actor_critic, Spaces(MASKED, spaces.Discrete(4)), Config(network=network), 0)
    assert built.critics(torch.zeros(7, 3)).shape == (num or 2, 7, 4)
    with pytest.raises(ConfigError, match=r"'critics \(1 of 1\)' returned \(3, 1\) .* values need \(3, 2\)"):
        build_agent(
            soft_actor_critic, Spaces(OBS, spaces.Discrete(2)),
            Config(network=lambda *_: [nn.Linear(3, 2), nn.Linear(3, 1)]), 0,
        )  # fmt: skip


BANDIT: dict[str, Any] = {
    "env": "raceway/SoftBandit-v0", "engine": "inline", "num_workers": 1, "num_envs": 4, "num_shards": 1, "seed": 1,
    "progress": False, "hidden": (16,), "lr": 1e-2, "batch_size": 32, "learning_starts": 50, "tau": 0.1,
    "steps_per_update": 2, "total_timesteps": 2000,
}  # fmt: skip


def learnt(path: Path, **settings: Any) -> tuple[np.ndarray, float]:
    """Train on the bandit, and return the probabilities of its arms and the temperature."""
    policy = raceway.train("sac", run_dir=path / "run", **BANDIT, **settings).policy
    probabilities = torch.from_numpy(policy.policy.outputs(np.zeros(1, np.int64), {})[0]).softmax(-1)[0].numpy()
    return probabilities, float(np.exp(policy.weights()["temperature.log_alpha"]))


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_the_soft_policy_of_a_bandit_at_a_fixed_temperature(alpha: float, tmp_path: Path) -> None:
    probabilities, temperature = learnt(tmp_path, initial_temperature=alpha, temperature_lr=0)
    assert temperature == pytest.approx(alpha)
    assert probabilities == pytest.approx(SoftBandit().soft_policy(alpha), abs=0.02)


def test_the_entropy_of_a_bandit_at_an_automatic_temperature(tmp_path: Path) -> None:
    probabilities, temperature = learnt(tmp_path, target_entropy=0.4)
    assert -(probabilities * np.log(probabilities)).sum() == pytest.approx(0.4, abs=0.03)
    assert SoftBandit().entropy(temperature) == pytest.approx(0.4, abs=0.03)
