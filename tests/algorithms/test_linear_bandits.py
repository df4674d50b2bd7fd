"""LinUCB and LinTS: models and bounds by hand, what explores, and the arms of an environment that are known."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raceway import load
from raceway.agents import Spaces, build_agent
from raceway.agents.linear_arms import LinearBandit as Agent
from raceway.agents.linear_arms import ThompsonSampling, UpperConfidence, linear_bandit
from raceway.algorithms.linucb import Config
from raceway.envs import LinearBandit
from raceway.errors import ConfigError
from raceway.learner.learner import Learner
from raceway.ops import FitOneStep
from raceway.rl import concat
from raceway.rl.linear_bandits import random_argmax, thompson_samples, updated_inverse, upper_bounds
from raceway.training.train import train
from tests.example_agents import example_actor

ROWS = {
    "obs": np.array([[1, 0], [1, 1], [0, 2]], np.float32), "action": np.array([3, 3, 4]),
    "reward": np.array([2, 0, 4], np.float32),
}  # fmt: skip
"""The first of three arms, which are numbered from 3, is pulled twice, and the second once."""


def bandit(obs_space: spaces.Space | None = None, **settings: Any) -> Any:
    own = Spaces(obs_space or spaces.Box(-9, 9, (2,)), spaces.Discrete(3, start=3))
    return build_agent(linear_bandit, own, Config(**settings), 0)


def tensors(agent: Agent) -> dict[str, np.ndarray]:
    return {name.rpartition(".")[2]: array.copy() for name, array in agent.weights().items()}


def fitted(**settings: Any) -> Any:
    agent = bandit(**settings)
    FitOneStep(Learner(agent, 1.0))(ROWS, envelope=SimpleNamespace(version=0))
    return agent


def test_models_by_hand() -> None:
    agent = fitted()
    found = tensors(agent)
    # A = I + x xᵀ of both pulls, b = Σ r x, and θ = A⁻¹ b.
    np.testing.assert_array_equal(found["precision"], [[[3, 1], [1, 2]], [[1, 0], [0, 5]], [[1, 0], [0, 1]]])
    np.testing.assert_array_equal(found["moment"], [[2, 0], [0, 8], [0, 0]])
    np.testing.assert_array_equal(found["pulls"], [2, 1, 0])
    np.testing.assert_allclose(found["inverse"][0], [[0.4, -0.2], [-0.2, 0.6]], rtol=1e-14)
    np.testing.assert_allclose(found["theta"], [[0.8, -0.4], [0, 1.6], [0, 0]], rtol=1e-14, atol=1e-16)
    assert found["theta"].dtype == found["inverse"].dtype == found["precision"].dtype == np.float64


def test_bounds_by_hand() -> None:
    agent = fitted()
    actor = agent.actor.acting(np.random.default_rng(0), UpperConfidence(0.5))
    obs = np.array([[1, 1]], np.float32)
    # Means 0.4, 1.6 and 0; xᵀA⁻¹x is 0.4 - 0.4 + 0.6, 1 + 1/5 and 2.
    scores = UpperConfidence(0.5).outputs_of(agent.actor, np.random.default_rng(0))(obs)
    expected = [0.4 + 0.5 * math.sqrt(0.6), 1.6 + 0.5 * math.sqrt(1.2), 0.5 * math.sqrt(2)]
    np.testing.assert_allclose(scores, [expected], rtol=1e-14)
    assert actor(obs, {})[0].tolist() == [4]
    # With a large α, the arm that nobody has pulled.
    assert agent.actor.acting(np.random.default_rng(0), UpperConfidence(9.0))(obs, {})[0].tolist() == [5]
    assert agent.actor.acting(None)(obs, {})[0].tolist() == [4]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 3.0])
def test_alpha_scales_the_samples_of_models(alpha: float) -> None:
    agent, num = fitted(), 20_000
    obs = np.broadcast_to(np.array([1, 1], np.float32), (num, 2)).copy()
    scores = ThompsonSampling(alpha).outputs_of(agent.actor, np.random.default_rng(1))(obs)
    deviations = alpha * np.sqrt([0.6, 1.2, 2.0])
    np.testing.assert_allclose(scores.mean(0), [0.4, 1.6, 0], atol=max(deviations.max() * 0.03, 1e-12))
    np.testing.assert_allclose(scores.std(0), deviations, rtol=0.03, atol=1e-12)
    # As samples of θ̃ from N(θ, α² A⁻¹) have it.
    covariance = alpha**2 * np.array([[0.4, -0.2], [-0.2, 0.6]])
    theta = np.random.default_rng(2).multivariate_normal([0.8, -0.4], covariance, num)
    np.testing.assert_allclose((theta @ [1, 1]).std(), scores[:, 0].std(), rtol=0.03, atol=1e-12)
    if alpha:
        assert abs(np.corrcoef(scores.T)[0, 1]) < 0.03, "the models of two arms are independent"


def test_only_the_arm_that_was_pulled_is_updated() -> None:
    agent = fitted()
    before = tensors(agent)
    FitOneStep(Learner(agent, 1.0))({**ROWS, "action": np.array([5, 5, 5])}, envelope=SimpleNamespace(version=0))
    for name, array in tensors(agent).items():
        np.testing.assert_array_equal(array[:2], before[name][:2])
        assert not np.array_equal(array[2], before[name][2])


def test_inverses_are_computed_again_against_rounding_errors() -> None:
    random = np.random.default_rng(3)
    batch = {
        "obs": (1000 * random.normal(size=(40, 2))).astype(np.float32), "action": np.full(40, 3),
        "reward": np.ones(40, np.float32),
    }  # fmt: skip
    often, never = fitted(recompute_every=7), fitted(recompute_every=10**9)
    for agent in (often, never):
        FitOneStep(Learner(agent, 1.0))(batch, envelope=SimpleNamespace(version=0))
    found = tensors(often)
    assert found["pulls"][0] == 42  # a multiple of 7
    np.testing.assert_array_equal(found["inverse"][0], np.linalg.inv(found["precision"][0]))
    assert not np.array_equal(tensors(never)["inverse"][0], found["inverse"][0])
    np.testing.assert_array_equal(tensors(never)["precision"], found["precision"])


def test_the_update_of_an_inverse() -> None:
    matrix, x = np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([2.0, -1.0])
    np.testing.assert_allclose(
        updated_inverse(np.linalg.inv(matrix), x), np.linalg.inv(matrix + np.outer(x, x)), rtol=1e-13
    )


def test_equal_scores_are_chosen_from_at_random_and_reproducibly() -> None:
    scores = np.tile([1.0, 2.0, 2.0, 2.0], (3000, 1))
    chosen = random_argmax(scores, np.random.default_rng(4))
    shares = np.bincount(chosen, minlength=4) / 3000
    np.testing.assert_allclose(shares, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.03)
    np.testing.assert_array_equal(chosen, random_argmax(scores, np.random.default_rng(4)))


@pytest.mark.parametrize("explorer", [UpperConfidence(), ThompsonSampling()])
def test_masked_arms_are_not_pulled(explorer: Any) -> None:
    box = spaces.Box(-9, 9, (2,))
    agent = bandit(spaces.Dict({"observation": box, "action_mask": spaces.Box(0, 1, (3,), np.int8)}))
    obs = {"observation": np.ones((50, 2), np.float32), "action_mask": np.tile(np.array([1, 0, 1], np.int8), (50, 1))}
    assert set(agent.actor.acting(np.random.default_rng(0), explorer)(obs, {})[0].tolist()) == {3, 5}


def test_only_agents_that_can_are_updated_in_closed_form() -> None:
    agent = example_actor(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"trained by a loss\. Use TrainOneStep instead of FitOneStep"):
        FitOneStep(Learner(agent, 1.0))(ROWS, envelope=SimpleNamespace(version=0))


# Runs.


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str, steps: int, **settings: Any) -> Any:
    return train(name, total_timesteps=steps, engine="inline", progress=False, run_dir="run", **settings)


@pytest.mark.parametrize("num_envs", [1, 8])
@pytest.mark.parametrize("name", ["linucb", "lints"])
def test_the_means_of_arms_without_noise_are_exact(name: str, num_envs: int) -> None:
    """As exact as the regularisation allows, also if eight arms are pulled before each update."""
    result = run(name, 400, env_kwargs={"noise": 0.0}, ridge=1e-6, num_envs=num_envs)
    env, agent = LinearBandit(noise=0.0), result.policy.agent
    with torch.no_grad():
        means = agent.actor(torch.from_numpy(env.contexts.astype(np.float32)), {})[0].numpy()
    np.testing.assert_allclose(means.max(1), env.means.max(1), atol=1e-5)
    assert tensors(agent)["pulls"].sum() == 400
    found = load("run")
    chosen = found.act(env.contexts.astype(np.float32))
    np.testing.assert_array_equal(env.means[np.arange(len(chosen)), chosen], env.means.max(1))


@pytest.mark.parametrize(("name", "alpha"), [("linucb", 1.0), ("lints", 0.5)])
def test_the_regret_is_small(name: str, alpha: float) -> None:
    result = run(name, 500, alpha=alpha, info_keys=("regret",), metrics_interval=0)
    regret = sum(row["env/regret_mean"] for row in result.metrics)
    assert regret < 0.1 * 500 * LinearBandit().random_regret
    assert regret > 0


def test_delayed_updates_give_the_same_models_as_all_pulls_together() -> None:
    """Of whatever was pulled: A and b are sums, in any order."""
    agents = [bandit(), bandit()]
    other = {**ROWS, "action": np.array([4, 5, 3])}
    for rows in (ROWS, other):
        FitOneStep(Learner(agents[0], 1.0))(rows, envelope=SimpleNamespace(version=0))
    FitOneStep(Learner(agents[1], 1.0))(concat([ROWS, other]), envelope=SimpleNamespace(version=0))
    for name, array in tensors(agents[0]).items():
        np.testing.assert_array_equal(tensors(agents[1])[name], array)


@pytest.mark.parametrize("setting", [{"lr": 0.1}, {"hidden": (8,)}, {"gamma": 0.5}, {"max_grad_norm": 1.0}])
def test_settings_without_an_effect_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has no effect with this network: the models of a linear bandit"):
        run("linucb", 10, **setting)


def test_another_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="a linear bandit has a linear model of its own"):
        run("lints", 10, network=lambda *_: torch.nn.Linear(3, 5))


def test_functions_by_hand() -> None:
    means, inverses, x = np.array([[1.0, 2.0]]), np.stack([np.eye(2), 4 * np.eye(2)]), np.array([[3.0, 4.0]])
    np.testing.assert_allclose(upper_bounds(means, inverses, x, 0.1), [[1.5, 3.0]])
    noise = np.random.default_rng(5).standard_normal((1, 2))
    np.testing.assert_allclose(
        thompson_samples(means, inverses, x, 0.1, np.random.default_rng(5)), means + [[0.5, 1.0]] * noise
    )
