"""DroQ and REDQ: the losses by hand, which random numbers they use, and which part each objective trains."""

import math
from functools import partial
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import Spaces, build_agent
from raceway.algorithms import droq, find_algorithm, redq
from raceway.errors import ConfigError
from raceway.learner.learner import Learner, tensors_of
from raceway.learner.objectives import Objective, Target

SPACES = Spaces(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (2,)))
TARGETS = [Target("critics", tau=0.1)]


class FixedCritics:
    """Critics with given Q-values, which note what else they are called with."""

    def __init__(self, values: list[float]) -> None:
        self.values, self.calls = torch.tensor(values), list[dict[str, Any]]()

    def __len__(self) -> int:
        return len(self.values)

    def __call__(self, obs: Any, action: Tensor, **options: Any) -> Tensor:
        self.calls.append(options)
        members = options.get("members")
        return (self.values if members is None else self.values[members])[:, None].expand(-1, len(obs))


def fixed_agent(q_values: list[float], target_q_values: list[float]) -> Any:
    """Return an agent with given Q-values, a log-probability of -0.5 and a temperature of 0.2."""

    def sample(params: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(params), 2), torch.full((len(params),), -0.5)

    def actor(obs: Any, state: Any) -> Any:
        return torch.zeros(len(obs), 4), state

    actor.distribution = SimpleNamespace(sample_with_log_prob=sample)  # type: ignore[attr-defined]
    alpha = torch.tensor(0.2)
    temperature = SimpleNamespace(alpha=alpha, log_alpha=alpha.log(), target_entropy=-2.0)
    target = SimpleNamespace(critics=FixedCritics(target_q_values))
    return SimpleNamespace(actor=actor, critics=FixedCritics(q_values), target=target, temperature=temperature)


def fixed_batch() -> Any:
    return {
        "obs": torch.zeros(2, 3), "next_obs": torch.zeros(2, 3), "action": torch.zeros(2, 2),
        "reward": torch.tensor([1.0, 0.0]), "discount": torch.tensor([0.5, 0.0]),
    }  # fmt: skip


def test_losses_of_droq_by_hand() -> None:
    fixed, batch, random = fixed_agent([1.0, 2.0], [3.0, 5.0]), fixed_batch(), torch.Generator()
    # targets: 1 + 0.5 (min(3, 5) + 0.2 · 0.5) = 2.55, and 0 after termination
    expected = 0.5 * np.mean([(1 - 2.55) ** 2 + (2 - 2.55) ** 2, 1.0**2 + 2.0**2])
    assert float(droq.critics_loss(fixed, batch, random=random)[0]) == pytest.approx(expected)
    assert float(droq.actor_loss(fixed, batch, random=random)[0]) == pytest.approx(0.2 * -0.5 - 1.5)  # their mean
    assert float(droq.temperature_loss(fixed, batch)[0]) == pytest.approx(-math.log(0.2) * (-0.5 - 2))
    calls = [*fixed.critics.calls, *fixed.target.critics.calls]
    assert calls == 3 * [{"random": random}], "dropout in every pass"


def test_losses_of_redq_by_hand() -> None:
    q_values, target_q_values = [1.0, 2.0, 6.0, 3.0], [4.0, 3.0, 9.0, 5.0]
    fixed, batch = fixed_agent(q_values, target_q_values), fixed_batch()
    assert float(redq.actor_loss(fixed, batch, random=torch.Generator())[0]) == pytest.approx(0.2 * -0.5 - 3)
    chosen, random = set(), torch.Generator()
    for _ in range(100):
        loss = redq.critics_loss(fixed, batch, num_targets=2, random=random)[0]
        members = fixed.target.critics.calls[-1]["members"].tolist()
        # targets: 1 + 0.5 (the smaller of two + 0.2 · 0.5), and 0 after termination; all critics learn them
        target = 1 + 0.5 * (min(target_q_values[number] for number in members) + 0.1)
        errors = [sum((q - target) ** 2 for q in q_values), sum(q**2 for q in q_values)]
        assert float(loss) == pytest.approx(0.5 * np.mean(errors))
        chosen.add(frozenset(members))
    assert len(chosen) == 6, "all pairs"


def objectives(module: ModuleType, every: int = 1) -> dict[str, Objective]:
    critics = module.critics_loss
    return {
        "critics": Objective(loss=partial(critics, num_targets=2) if module is redq else critics),
        "actor": Objective(loss=module.actor_loss, every=every),
        "temperature": Objective(loss=module.temperature_loss, every=every),
    }


def learner(name: str, *, compiled: bool, seed: int = 1, hidden: tuple[int, ...] = (8, 8), **settings: Any) -> Learner:
    algorithm = find_algorithm(name)
    return Learner(
        build_agent(algorithm.agent, SPACES, algorithm.config(hidden=hidden, **settings), 0),
        1e-2, seed=seed, compiled=compiled,
    )  # fmt: skip


def example_batch(num: int = 12) -> Any:
    random = np.random.default_rng(0)
    columns = {"obs": (num, 3), "next_obs": (num, 3), "action": (num, 2), "reward": (num,), "discount": (num,)}
    return {key: random.normal(size=shape).astype(np.float32) for key, shape in columns.items()}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("part", ["critics", "actor", "temperature"])
@pytest.mark.parametrize("module", [droq, redq])
def test_an_objective_trains_its_own_part_only(module: ModuleType, part: str, compiled: bool) -> None:
    trained = learner(module.__name__.rpartition(".")[2], compiled=compiled)
    before = {key: value.detach().clone() for key, value in trained.agent.named_parameters()}
    batch = example_batch() | {"new_log_prob": np.zeros(12, np.float32)}  # that the temperature gets from the actor
    trained.train({part: objectives(module)[part]}, batch, targets=TARGETS)
    for key, value in trained.agent.named_parameters():
        assert torch.equal(value, before[key]) != key.startswith(f"{part}."), key


@pytest.mark.parametrize("module", [droq, redq])
def test_compiled_losses_have_the_gradients_of_torch_with_the_same_random_numbers(module: ModuleType) -> None:
    name, batch = module.__name__.rpartition(".")[2], example_batch(64)
    trained = learner(name, compiled=True, hidden=(64, 64))
    trained.prepare(objectives(module), TARGETS)
    for part in ("critics", "actor"):
        objective, state = trained.objectives[part], trained.random.get_state()
        with objective.isolated():
            assert trained._run_compiled(objective, objective.loss, tensors_of(batch)) is not None
            compiled, after = [each.grad.clone() for each in objective.parameters], trained.random.get_state()
            trained.random.set_state(state)
            objective.optimiser.zero_grad()
            objective.call(objective.loss, trained.agent, tensors_of(batch), trained.random)[0].backward()
        assert torch.equal(trained.random.get_state(), after)
        for gradient, parameter in zip(compiled, objective.parameters, strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("module", [droq, redq])
def test_random_numbers_come_from_the_generator_of_the_learner(module: ModuleType, compiled: bool) -> None:
    """Also after a restart from a checkpoint: what is dropped or chosen next depends on the saved state alone."""
    name = module.__name__.rpartition(".")[2]
    first, second = (learner(name, compiled=compiled, hidden=(64, 64), seed=seed) for seed in (1, 2))
    for _ in range(3):
        first.train(objectives(module), example_batch(), targets=TARGETS)
    torch.manual_seed(7)
    second.restore(first.state())
    for trained in (first, second):
        trained.train(objectives(module), example_batch(), targets=TARGETS)
    assert first.agent.sha256() == second.agent.sha256()
    assert first.global_random.state is None


@pytest.mark.parametrize("module", [droq, redq])
def test_the_actor_is_updated_less_often(module: ModuleType) -> None:
    trained = learner(module.__name__.rpartition(".")[2], compiled=False)
    hashes = []
    for _ in range(6):
        metrics = trained.train(objectives(module, every=3), example_batch(), targets=TARGETS).metrics
        hashes.append((trained.agent.weights(["actor"])["actor.network.1.weight"].tobytes(), "entropy" in metrics))
    assert [has_actor for _, has_actor in hashes] == [False, False, True, False, False, True]
    assert [one[0] != two[0] for one, two in pairwise(hashes)] == [False, True, False, False, True]


def test_settings_and_networks_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="target_critics 3 are sampled from num_critics 2"):
        redq.Config(num_critics=2, target_critics=3)
    with pytest.raises(ConfigError, match=r"dropout must be a number from 0 to below 1"):
        droq.Config(dropout=1.0)

    class Critic(nn.Module):
        def forward(self, obs: Tensor, action: Tensor) -> Tensor:
            return obs[:, :1] + action[:, :1]

    def network(*_: Any) -> list[nn.Module]:
        return [nn.Linear(3, 4), Critic(), Critic(), Critic()]

    with pytest.raises(ConfigError, match=r"without the layer_norm and dropout of this algorithm\. Return the actor"):
        build_agent(droq.agent, SPACES, droq.Config(network=network), 0)
    with pytest.raises(ConfigError, match=r"target_critics 4 are sampled from the 3 critics of your own"):
        build_agent(redq.agent, SPACES, redq.Config(network=network, target_critics=4), 0)
    agent: Any = build_agent(redq.agent, SPACES, redq.Config(network=network), 0)
    assert agent.actor.unused_settings["num_critics"] == "the critics are your own"
    critics = agent.critics
    assert critics(torch.zeros(5, 3), torch.zeros(5, 2), members=torch.tensor([2, 0])).shape == (2, 5)
