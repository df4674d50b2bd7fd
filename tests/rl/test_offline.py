"""Functions of learning from datasets against numbers computed by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from raceway.rl import (
    conservative_penalty,
    expectile_loss,
    exponential_weights,
    importance_weighted,
    q_scale,
    scaled_advantages,
)


def test_the_expectile_loss() -> None:
    """|0.7 - 1(u < 0)| u²: 0.7 · 4, 0.3 · 4, 0.3 · 1 and 0."""
    errors = torch.tensor([2.0, -2.0, -1.0, 0.0])
    torch.testing.assert_close(expectile_loss(errors, 0.7), torch.tensor([2.8, 1.2, 0.3, 0.0]))
    torch.testing.assert_close(expectile_loss(errors, 0.5), 0.5 * errors.square())


@pytest.mark.parametrize(("expectile", "value"), [(0.5, 1.5), (0.75, 2.25), (0.9, 2.7), (0.0, 0.0), (1.0, 3.0)])
def test_the_expectile_of_two_numbers(expectile: float, value: float) -> None:
    """Of 0 and 3: τ (3 - v) = (1 - τ) v, so v = 3τ. There the derivative is 0, and the extremes are reached."""
    v = torch.tensor(value, requires_grad=True)
    expectile_loss(torch.tensor([0.0, 3.0]) - v, expectile).sum().backward()
    assert float(v.grad) == pytest.approx(0, abs=1e-6)  # type: ignore[arg-type]


def test_weights_grow_with_advantages_up_to_a_limit() -> None:
    advantages = torch.tensor([-1.0, 0.0, 0.5, 2.0, 100.0], requires_grad=True)
    weights = exponential_weights(advantages, beta=2.0, limit=100.0)
    assert weights.tolist() == pytest.approx([math.exp(-2), 1, math.exp(1), math.exp(4), 100])
    assert not weights.requires_grad
    assert exponential_weights(advantages, beta=0.0).tolist() == [1.0] * 5


def test_advantages_are_scaled_to_a_mean_square_of_1() -> None:
    """√((1 + 49) / 2) = 5, and the mean is not subtracted."""
    assert scaled_advantages(torch.tensor([1.0, 7.0], requires_grad=True)).tolist() == pytest.approx([0.2, 1.4])
    assert not scaled_advantages(torch.ones(2, requires_grad=True)).requires_grad
    assert scaled_advantages(torch.zeros(2)).tolist() == [0, 0]


def test_the_scale_of_q_values() -> None:
    """2.5 / ((1 + 4) / 2) = 1, and it has no gradient, which would let the policy lower the magnitude of Q."""
    q_values = torch.tensor([1.0, -4.0], requires_grad=True)
    scale = q_scale(q_values, 2.5)
    assert scale.item() == 1.0
    (scale * q_values.sum()).backward()
    assert q_values.grad.tolist() == [1.0, 1.0]  # type: ignore[union-attr]


def test_the_penalty_of_discrete_actions() -> None:
    """log(e^log1 + e^log3) - log 3 = log(4/3), and log(2 + 2) - log 2 = log 2."""
    q_values = torch.tensor([[1.0, 3.0], [2.0, 2.0]]).log()
    gaps = conservative_penalty(q_values, torch.tensor([3.0, 2.0]).log())
    assert gaps.exp().tolist() == pytest.approx([4 / 3, 2])


def test_the_gradient_of_the_penalty_lowers_other_actions_and_raises_that_of_the_data() -> None:
    """softmax - one-hot: (1/4, 3/4) - (1, 0)."""
    q_values = torch.tensor([[1.0, 3.0]]).log().requires_grad_()
    conservative_penalty(q_values, q_values[:, 0]).sum().backward()
    assert q_values.grad[0].tolist() == pytest.approx([-0.75, 0.75])  # type: ignore[index]


def test_the_penalty_of_sampled_actions() -> None:
    """A uniform action, density 1/2, and one that was sampled with density 3: (e^log2 / 0.5 + e^log6 / 3) / 2 = 3."""
    q_values = torch.tensor([[[2.0, 6.0]], [[2.0, 6.0]]]).log()  # of two critics
    weighted = importance_weighted(q_values, torch.tensor([[0.5, 3.0]]).log())
    assert conservative_penalty(weighted, torch.zeros(2, 1)).exp().tolist() == [[pytest.approx(3)], [pytest.approx(3)]]


@pytest.mark.parametrize("dims", [1, 2])
def test_sampled_actions_estimate_the_integral(dims: int) -> None:
    """∫ exp(Σ aᵢ) da over [-1, 1]^d is (e - 1/e)^d, from uniform actions and from normal ones alike."""
    random = torch.Generator().manual_seed(0)
    uniform = 2 * torch.rand(20_000, dims, generator=random) - 1
    normal = 0.5 * torch.randn(20_000, dims, generator=random)
    log_density = (-2 * normal.square()).sum(-1) - dims * math.log(0.5 * math.sqrt(2 * math.pi))

    def q_values(actions: Tensor) -> Tensor:
        return actions.sum(-1).masked_fill((actions.abs() > 1).any(-1), -math.inf)

    both = torch.cat([q_values(uniform), q_values(normal)])
    densities = torch.cat([torch.full((20_000,), dims * math.log(0.5)), log_density])
    estimate = conservative_penalty(importance_weighted(both, densities), torch.tensor(0.0))
    assert float(estimate.exp()) == pytest.approx(float(np.e - 1 / np.e) ** dims, rel=0.03)
