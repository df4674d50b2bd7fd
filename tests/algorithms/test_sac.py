"""SAC: the squashed Gaussian, the losses by hand, and what is sent to workers."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raceway.agents import Spaces, build_agent
from raceway.agents.builders import soft_actor_critic
from raceway.agents.distributions import SquashedGaussian
from raceway.agents.soft_actor_critic import SoftActorCritic
from raceway.algorithms import find_algorithm
from raceway.algorithms.sac import Config, actor_loss, critics_loss, temperature_loss
from raceway.autograd.tape import Tape, use_tape
from raceway.errors import ConfigError
from raceway.learner.learner import Learner, tensors_of
from raceway.learner.objectives import Objective, Target
from raceway.ops import UpdateWeights
from raceway.training.train import Training

SPACES = Spaces(spaces.Box(-1, 1, (3,)), spaces.Box(np.float32([-2, 0]), np.float32([2, 10])))
QUICK = {
    "env": "Pendulum-v1", "engine": "inline", "hidden": (16, 16), "batch_size": 16, "learning_starts": 20,
    "buffer_size": 500, "num_envs": 2, "num_shards": 1, "progress": False, "save_seconds": 0,
}  # fmt: skip


def example_agent(hidden: tuple[int, ...] = (8,)) -> SoftActorCritic:
    return build_agent(soft_actor_critic, SPACES, Config(hidden=hidden), 0)  # type: ignore[return-value]


def example_batch(num: int = 12) -> Any:
    random = np.random.default_rng(0)
    return {
        "obs": random.normal(size=(num, 3)).astype(np.float32),
        "next_obs": random.normal(size=(num, 3)).astype(np.float32),
        "action": random.uniform(-1, 1, (num, 2)).astype(np.float32),
        "reward": random.normal(size=num).astype(np.float32),
        "discount": np.full(num, 0.9, np.float32),
        "index": np.arange(num),
    }


# The squashed Gaussian.


@pytest.mark.parametrize("mean", [0.0, 3.0, -8.0, 30.0])
def test_log_probabilities_are_right_where_tanh_saturates(mean: float) -> None:
    """Against the change of variables in double precision: log N(u) - log(1 - tanh(u)²)."""
    distribution = SquashedGaussian(spaces.Box(-1, 1, (1,)))
    params = torch.tensor([[mean, -0.5]])
    actions, log_prob = distribution.sample_with_log_prob(params, torch.Generator().manual_seed(3))
    noise = torch.randn((1, 1), generator=torch.Generator().manual_seed(3)).double()
    value = mean + math.exp(-0.5) * noise
    # log(1 - tanh²) = log 4 - 2u - 2 log(1 + e^{-2u}), which is symmetric in u
    slope = math.log(4) - 2 * value.abs() - 2 * torch.log1p((-2 * value.abs()).exp())
    expected = -0.5 * noise**2 + 0.5 - 0.5 * math.log(2 * math.pi) - slope
    assert float(log_prob) == pytest.approx(float(expected), rel=1e-4, abs=1e-4)
    assert float(actions) == pytest.approx(math.tanh(float(value)), rel=1e-5)


def test_actions_fill_the_bounds_of_the_space() -> None:
    distribution = SquashedGaussian(SPACES.action)
    params = np.tile(np.array([[0, 0, 1, 1]], np.float32), (5000, 1))
    actions = distribution.sample(params, np.random.default_rng(0))
    low, high = SPACES.action.low, SPACES.action.high  # type: ignore[attr-defined]
    assert (actions >= low).all()
    assert (actions <= high).all()
    np.testing.assert_allclose(actions.min(0), low, atol=0.05)
    np.testing.assert_allclose(actions.max(0), high, atol=0.05)
    np.testing.assert_allclose(distribution.mode(np.zeros((1, 4), np.float32)), [[0, 5]])


def test_sampling_in_numpy_has_the_gradients_of_autograd() -> None:
    distribution, values = SquashedGaussian(SPACES.action), torch.tensor([[0.3, -1, 0.5, 5], [2, 0, -25, -1]])
    results = []
    for tape in (None, Tape()):
        params = values.clone().requires_grad_() if tape is None else tape.record(values.numpy().copy(), lambda _: None)
        with use_tape(tape):
            actions, log_prob = distribution.sample_with_log_prob(params, torch.Generator().manual_seed(1))
            loss = (actions.square().sum(-1) + 0.7 * log_prob).sum()
        loss.backward() if tape is None else tape.backward(loss)
        results.append((actions.detach(), log_prob.detach(), params.grad))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_unbounded_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="a squashed Gaussian needs a Box with finite bounds"):
        SquashedGaussian(spaces.Box(-np.inf, np.inf, (1,)))


# The losses, with critics and a policy whose outputs are constants.


class Fixed:
    """An agent with given Q-values, log-probability and temperature."""

    q_values = SoftActorCritic.q_values
    soft_value = SoftActorCritic.soft_value

    def __init__(self, q: list[float], target_q: list[float], log_prob: float, log_alpha: float) -> None:
        def sample(params: torch.Tensor, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros(len(params), 2), torch.full((len(params),), log_prob)

        self.actor: Any = lambda obs, state: (torch.zeros(len(obs), 4), {})
        self.actor = _Actor(sample)
        self.critics = lambda obs, action: torch.tensor(q)[:, None].expand(2, len(obs))
        self.target = SimpleNamespace(critics=lambda obs, action: torch.tensor(target_q)[:, None].expand(2, len(obs)))
        alpha = torch.tensor(math.exp(log_alpha))
        self.temperature = SimpleNamespace(log_alpha=torch.tensor(log_alpha), alpha=alpha, target_entropy=-2.0)


class _Actor:
    def __init__(self, sample: Any) -> None:
        self.distribution = SimpleNamespace(sample_with_log_prob=sample)

    def __call__(self, obs: Any, state: Any) -> Any:
        return torch.zeros(len(obs), 4), state


def test_losses_by_hand() -> None:
    fixed: Any = Fixed(q=[1.0, 2.0], target_q=[3.0, 5.0], log_prob=-0.5, log_alpha=math.log(0.2))
    batch = tensors_of(example_batch(2)) | {"reward": torch.tensor([1.0, 0.0]), "discount": torch.tensor([0.5, 0.0])}
    random = torch.Generator()
    # targets: 1 + 0.5 (min(3, 5) + 0.2 · 0.5) = 2.55, and 0 after termination
    expected = 0.5 * np.mean([(1 - 2.55) ** 2 + (2 - 2.55) ** 2, 1.0**2 + 2.0**2])
    assert float(critics_loss(fixed, batch, random=random)[0]) == pytest.approx(expected)
    assert float(actor_loss(fixed, batch, random=random)[0]) == pytest.approx(0.2 * -0.5 - 1.0)
    assert float(temperature_loss(fixed, batch)[0]) == pytest.approx(-math.log(0.2) * (-0.5 - 2))


def objectives() -> dict[str, Objective]:
    losses = {"critics": critics_loss, "actor": actor_loss, "temperature": temperature_loss}
    return {name: Objective(loss=loss) for name, loss in losses.items()}


def test_the_numpy_passes_train_like_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = []
    for numpy in (True, False):
        if not numpy:
            for module in ("raceway.autograd.ensembles", "raceway.autograd.layers", "raceway.agents.distributions"):
                monkeypatch.setattr(f"{module}.tape_for", lambda x: None)
                monkeypatch.setattr(f"{module}.can_use_numpy", lambda x: False)
        learner = Learner(example_agent((16, 8)), 1e-3, seed=1)
        for _ in range(3):
            learner.train(objectives(), example_batch(), targets=[Target("critics", tau=0.1)])
        agents.append(learner.agent)
    for name, array in agents[0].weights().items():
        np.testing.assert_allclose(array, agents[1].weights()[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["critics", "actor", "temperature"])
def test_an_objective_trains_its_own_part_only(name: str) -> None:
    learner = Learner(example_agent(), 1e-2, seed=1)
    targets = [Target("critics", tau=0.1)]
    learner.train(objectives(), example_batch(), targets=targets)
    before = {key: (value.detach().clone(), value.grad.clone()) for key, value in learner.agent.named_parameters()}  # type: ignore[union-attr]
    batch = example_batch() | {"new_log_prob": np.zeros(12, np.float32)}  # that the temperature gets from the actor
    learner.train({name: objectives()[name]}, batch, targets=targets)
    for key, value in learner.agent.named_parameters():
        same = torch.equal(value, before[key][0]) and torch.equal(value.grad, before[key][1])  # type: ignore[arg-type]
        assert same != key.startswith(f"{name}."), key


def test_the_temperature_rises_while_the_entropy_is_too_low() -> None:
    learner = Learner(example_agent(), 1e-2, seed=1)
    with torch.no_grad():
        learner.agent.actor.network[-1].bias[2:] = -6.0  # type: ignore[index,union-attr] # small deviations
    for _ in range(20):
        metrics, _ = learner.train(objectives(), example_batch(), targets=[Target("critics", tau=0.005)])
    assert metrics["entropy"] < -2
    assert metrics["ent_coef"] > 1.05


# Runs.


def test_workers_are_sent_less_than_half_of_the_agent() -> None:
    learner = Learner(example_agent((256, 256)), 1e-3)
    sent = UpdateWeights(learner, []).worker_weights()
    assert {name.split(".")[0] for name in sent} == {"actor"}
    total = sum(array.nbytes for array in learner.agent.weights().values())
    assert sum(array.nbytes for array in sent.values()) < 0.5 * total


def test_actions_are_random_until_training_starts() -> None:
    algorithm = find_algorithm("sac")
    settings = {name: value for name, value in QUICK.items() if name != "progress"} | {"learning_starts": 400}
    training = Training(algorithm, algorithm.settings(**settings, fragment_steps=100, iterations=4))
    with training.open_flow(run=True) as flow:
        rows = list(flow.take(2))
    assert rows[-1]["time/total_timesteps"] >= 200
    explorer = training.exploration.explorer
    actions = np.concatenate(
        [explorer.choose_without_outputs(step, 2, np.random.default_rng(step)) for step in range(200)]  # type: ignore[misc]
    )
    assert explorer.choose_without_outputs(200, 2, np.random.default_rng(0)) is None
    assert abs(float(actions.mean())) < 0.2
    assert float(actions.std()) == pytest.approx(4 / math.sqrt(12), rel=0.1)  # uniform from -2 to 2
