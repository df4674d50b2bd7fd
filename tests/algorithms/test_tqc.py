"""TQC: the losses by hand, and which part each objective trains."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raceway.agents import Spaces, build_agent
from raceway.algorithms.tqc import Config, actor_loss, agent, critics_loss, temperature_loss
from raceway.learner.learner import Learner
from raceway.learner.objectives import Objective, Target

SPACES = Spaces(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (2,)))
OBJECTIVES = {
    "critics": Objective(loss=partial(critics_loss, num_dropped=1)),
    "actor": Objective(loss=actor_loss),
    "temperature": Objective(loss=temperature_loss),
}


def fixed_agent(quantiles: Any, target_quantiles: Any, log_prob: float, alpha: float) -> Any:
    """Return an agent with given quantiles of two critics, [2, K], log-probability and temperature."""

    def sample(params: torch.Tensor, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(params), 2), torch.full((len(params),), log_prob)

    def actor(obs: Any, state: Any) -> Any:
        return torch.zeros(len(obs), 4), state

    def constant(values: Any) -> Any:
        return lambda obs, action: torch.tensor(values)[:, None].expand(2, len(obs), -1)

    actor.distribution = SimpleNamespace(sample_with_log_prob=sample)  # type: ignore[attr-defined]
    temperature = SimpleNamespace(alpha=torch.tensor(alpha), log_alpha=torch.tensor(math.log(alpha)), target_entropy=-2)
    target = SimpleNamespace(critics=constant(target_quantiles))
    return SimpleNamespace(actor=actor, critics=constant(quantiles), target=target, temperature=temperature)


def test_losses_by_hand() -> None:
    fixed = fixed_agent([[0.0, 4.0], [1.0, 2.0]], [[1.0, 9.0], [3.0, 7.0]], log_prob=-0.5, alpha=0.2)
    batch = {
        "obs": torch.zeros(1, 3), "next_obs": torch.zeros(1, 3), "action": torch.zeros(1, 2),
        "reward": torch.tensor([1.0]), "discount": torch.tensor([0.5]),
    }  # fmt: skip
    # Of the pooled quantiles 1, 3, 7, 9 the two largest are left out, one for each critic, wherever they come from.
    # Targets: 1 + 0.5 (1 + 0.1) = 1.55 and 1 + 0.5 (3 + 0.1) = 2.55. Fractions of the two quantiles: 0.25 and 0.75.
    # |τ - 1{u < 0}| Huber(u) with u = target - quantile, the mean over targets and quantiles of each critic:
    first = [0.25 * (1.55 - 0.5), 0.25 * (2.55 - 0.5), 0.25 * (2.45 - 0.5), 0.25 * (1.45 - 0.5)]  # of 0, 0, 4, 4
    second = [0.25 * 0.5 * 0.55**2, 0.25 * (1.55 - 0.5), 0.25 * 0.5 * 0.45**2, 0.75 * 0.5 * 0.55**2]  # of 1, 1, 2, 2
    loss, metrics = critics_loss(fixed, batch, num_dropped=1, random=torch.Generator())
    assert float(loss) == pytest.approx((sum(first) + sum(second)) / 4)
    assert float(metrics["q_values"]) == 1.75
    assert float(actor_loss(fixed, batch, random=torch.Generator())[0]) == pytest.approx(0.2 * -0.5 - 1.75)
    assert float(temperature_loss(fixed, batch)[0]) == pytest.approx(-math.log(0.2) * (-0.5 - 2))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_trains_its_own_part_only(name: str, compiled: bool) -> None:
    trained = build_agent(agent, SPACES, Config(hidden=(8,), num_quantiles=5), 0)
    learner = Learner(trained, 1e-2, seed=1, compiled=compiled)
    before = {key: value.detach().clone() for key, value in trained.named_parameters()}
    random = np.random.default_rng(0)
    columns = {"obs": (12, 3), "next_obs": (12, 3), "action": (12, 2), "reward": (12,), "discount": (12,)}
    batch = {key: random.normal(size=shape).astype(np.float32) for key, shape in columns.items()}
    batch["new_log_prob"] = np.zeros(12, np.float32)  # that the temperature gets from the actor
    learner.train({name: OBJECTIVES[name]}, batch, targets=[Target("critics", tau=0.1)])
    for key, value in trained.named_parameters():
        assert torch.equal(value, before[key]) != key.startswith(f"{name}."), key
