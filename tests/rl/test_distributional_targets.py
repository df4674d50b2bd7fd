"""Distributions of returns against arrays computed by hand, and their laws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raceway.rl import drop_largest, expected_values, project_distribution, quantile_huber_loss, quantile_midpoints

SUPPORT = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])


def project(reward: float, discount: float, *probabilities: float) -> list[float]:
    """Return the projection of one distribution on `SUPPORT`."""
    arguments = (torch.tensor([value]) for value in (reward, discount, probabilities))
    return project_distribution(SUPPORT, *arguments)[0].tolist()


def test_mass_between_two_atoms_is_divided() -> None:
    # Atoms -2 and 2 move to 0.25 - 1 = -0.75 and 0.25 + 1 = 1.25.
    assert project(0.25, 0.5, 0.5, 0, 0, 0, 0.5) == [0, 0.375, 0.125, 0.375, 0.125]
    # All atoms move up by 0.25; what passes the last stays there.
    assert project(0.25, 1.0, 0.5, 0, 0, 0.25, 0.25) == [0.375, 0.125, 0, 0.1875, 0.25 + 0.0625]


def test_mass_on_an_atom_stays_whole() -> None:
    # The returns -1, -0.5, 0, 0.5, 1 and -1, 0, 1, 2, 3 include atoms: floor and ceiling coincide there.
    assert project(0.0, 0.5, 0.25, 0, 0.5, 0, 0.25) == [0, 0.25, 0.5, 0.25, 0]
    assert project(1.0, 1.0, 0.25, 0.25, 0.5, 0, 0) == [0, 0.25, 0.25, 0.5, 0]
    assert project(0.0, 1.0, 0.1, 0.2, 0.3, 0.3, 0.1) == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.1])


def test_mass_at_the_edges_of_the_support() -> None:
    assert project(0.0, 1.0, 0.25, 0, 0, 0, 0.75) == [0.25, 0, 0, 0, 0.75]
    assert project(1.0, 1.0, 0, 0, 0, 1, 0) == [0, 0, 0, 0, 1]
    assert project(-1.0, 1.0, 0, 1, 0, 0, 0) == [1, 0, 0, 0, 0]


def test_returns_outside_the_support_are_clipped() -> None:
    assert project(100.0, 1.0, 0.5, 0, 0, 0, 0.5) == [0, 0, 0, 0, 1]
    assert project(-2.5, 1.0, 0, 0.5, 0, 0, 0.5) == [0.5, 0.25, 0.25, 0, 0]


def test_a_terminal_return_is_the_reward() -> None:
    assert project(1.0, 0.0, 0.25, 0.25, 0, 0, 0.5) == [0, 0, 0, 1, 0]
    assert project(-0.25, 0.0, 0.25, 0.25, 0, 0, 0.5) == [0, 0.25, 0.75, 0, 0]
    assert project(5.0, 0.0, 0.25, 0.25, 0, 0, 0.5) == [0, 0, 0, 0, 1]


def test_each_row_has_its_own_reward_and_discount() -> None:
    reward, discount = torch.tensor([[0.0, 1.0], [-0.25, 100.0]]), torch.tensor([[0.5, 1.0], [0.0, 1.0]])
    probabilities = torch.tensor([[[0.25, 0, 0.5, 0, 0.25], [0.25, 0.25, 0.5, 0, 0]], [[0.5, 0, 0, 0, 0.5]] * 2])
    expected = [[[0, 0.25, 0.5, 0.25, 0], [0, 0.25, 0.25, 0.5, 0]], [[0, 0.25, 0.75, 0, 0], [0, 0, 0, 0, 1]]]
    assert project_distribution(SUPPORT, reward, discount, probabilities).tolist() == expected


@settings(deadline=None)
@given(
    num_atoms=st.integers(2, 51),
    low=st.floats(-100, 100),
    width=st.floats(0.1, 200),
    discount=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_projection_keeps_the_mass(num_atoms: int, low: float, width: float, discount: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    support = torch.linspace(low, low + width, num_atoms)
    probabilities = torch.randn(8, num_atoms, generator=generator).softmax(-1)
    reward = width * torch.randn(8, generator=generator)
    actual = project_distribution(support, reward, torch.full((8,), discount), probabilities)
    assert (actual >= 0).all()
    torch.testing.assert_close(actual.sum(-1), torch.ones(8))


@settings(deadline=None)
@given(num_atoms=st.integers(2, 51), discount=st.floats(0, 0.9), seed=st.integers(0, 1000))
def test_projection_keeps_the_mean_inside_the_support(num_atoms: int, discount: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    support = torch.linspace(-10, 10, num_atoms, dtype=torch.float64)
    probabilities = torch.randn(8, num_atoms, generator=generator, dtype=torch.float64).softmax(-1)
    reward = 2 * torch.rand(8, generator=generator, dtype=torch.float64) - 1  # |r| + 0.9 · 10 is at most 10
    actual = project_distribution(support, reward, torch.full_like(reward, discount), probabilities)
    expected = reward + discount * expected_values(support, probabilities)
    torch.testing.assert_close(expected_values(support, actual), expected)


def test_expected_values_by_hand() -> None:
    # Two actions: -2/4 + 2/2, and 1.
    probabilities = torch.tensor([[[0.25, 0, 0.25, 0, 0.5], [0, 0, 0, 1, 0]]])
    assert expected_values(SUPPORT, probabilities).tolist() == [[0.5, 1]]


def test_midpoints_by_hand() -> None:
    assert quantile_midpoints(1).tolist() == [0.5]
    assert quantile_midpoints(2).tolist() == [0.25, 0.75]
    assert quantile_midpoints(5).tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    assert quantile_midpoints(5).dtype == torch.float32


QUANTILES, TARGETS, FRACTIONS = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.5, 4.0, -3.0]]), torch.tensor([0.25, 0.75])


def test_quantile_huber_loss_by_hand() -> None:
    # u = target - θ of the first: 0.5, 4, -3; Huber: 0.125, 3.5, 2.5; weighted by 1/4, 1/4 and, below it, 3/4.
    first = (0.125 / 4 + 3.5 / 4 + 2.5 * 3 / 4) / 3
    # Of the second: -1.5, 2, -5; Huber: 1, 1.5, 4.5; weighted by 1/4 below it, and 3/4 above.
    second = (1 / 4 + 1.5 * 3 / 4 + 4.5 / 4) / 3
    assert quantile_huber_loss(QUANTILES, TARGETS, FRACTIONS).tolist() == pytest.approx([first + second])


def test_quantile_huber_loss_with_another_kappa() -> None:
    # κ = 2: u²/4 up to 2, then |u| - 1. Of the first 0.0625, 3, 2; of the second 0.5625, 1, 4; with the same weights.
    first, second = (0.0625 / 4 + 3 / 4 + 2 * 3 / 4) / 3, (0.5625 / 4 + 1 * 3 / 4 + 4 / 4) / 3
    assert quantile_huber_loss(QUANTILES, TARGETS, FRACTIONS, kappa=2.0).tolist() == pytest.approx([first + second])


def test_the_loss_is_a_sum_over_predictions_and_a_mean_over_targets() -> None:
    once = quantile_huber_loss(QUANTILES, TARGETS, FRACTIONS)
    torch.testing.assert_close(quantile_huber_loss(QUANTILES, TARGETS.repeat(1, 2), FRACTIONS), once)
    twice = quantile_huber_loss(QUANTILES.repeat(1, 2), TARGETS, FRACTIONS.repeat(2))
    torch.testing.assert_close(twice, 2 * once)


def test_rows_may_have_their_own_fractions() -> None:
    generator = torch.Generator().manual_seed(0)
    quantiles, targets = torch.randn(4, 3, generator=generator), torch.randn(4, 5, generator=generator)
    fractions = torch.rand(4, 3, generator=generator)
    rows = [quantile_huber_loss(quantiles[i : i + 1], targets[i : i + 1], fractions[i]) for i in range(4)]
    torch.testing.assert_close(quantile_huber_loss(quantiles, targets, fractions), torch.cat(rows))
    same = quantile_huber_loss(quantiles, targets, fractions[:1].expand(4, 3))
    assert torch.equal(same, quantile_huber_loss(quantiles, targets, fractions[0]))


def test_critics_share_the_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    quantiles, targets = torch.randn(2, 4, 3, generator=generator), torch.randn(4, 5, generator=generator)
    expected = [quantile_huber_loss(critic, targets, quantile_midpoints(3)) for critic in quantiles]
    torch.testing.assert_close(quantile_huber_loss(quantiles, targets, quantile_midpoints(3)), torch.stack(expected))


def quantile_of(samples: Tensor, fraction: float) -> Tensor:
    """Return the smallest sample that at least a fraction of them do not exceed, [1, 1]."""
    shares = (samples <= samples[:, None]).double().mean(-1)
    return samples[shares >= fraction - 1e-12].min().expand(1, 1)


@settings(deadline=None)
@given(samples=st.lists(st.integers(-20, 20), min_size=1, max_size=15), fraction=st.sampled_from([0.1, 0.25, 0.5, 0.8]))
def test_the_minimum_is_the_quantile(samples: list[int], fraction: float) -> None:
    """With κ near 0, no prediction is better than the quantile."""
    targets = torch.tensor(samples, dtype=torch.float64)
    candidates = torch.arange(-21, 22, 0.5, dtype=torch.float64)[:, None]
    fractions = torch.tensor([fraction], dtype=torch.float64)
    losses = quantile_huber_loss(candidates, targets.expand(len(candidates), -1), fractions, kappa=1e-9)
    best = quantile_huber_loss(quantile_of(targets, fraction), targets[None], fractions, kappa=1e-9)
    assert best.item() <= losses.min().item() + 1e-6


def test_largest_quantiles_are_dropped_from_the_pooled_list() -> None:
    # Two critics, two rows. In the first row the two largest are of one critic, in the second of both.
    quantiles = torch.tensor([[[1.0, 5.0, 2.0], [9.0, 0.0, 3.0]], [[8.0, 7.0, 6.0], [1.0, 4.0, 9.5]]])
    assert drop_largest(quantiles, num_per_critic=1).tolist() == [[1, 2, 5, 6], [0, 1, 3, 4]]
    assert drop_largest(quantiles, num_per_critic=2).tolist() == [[1, 2], [0, 1]]
    assert drop_largest(quantiles, num_per_critic=0).tolist() == [[1, 2, 5, 6, 7, 8], [0, 1, 3, 4, 9, 9.5]]


def double(*shape: int, seed: int = 0) -> Tensor:
    """Return random numbers for `gradcheck`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("kappa", [1.0, 0.5])
def test_gradients(kappa: float) -> None:
    check = torch.autograd.gradcheck
    quantiles, targets, fractions = double(3, 4), double(3, 5, seed=1), double(3, 4, seed=2)
    inputs = (quantiles, targets, fractions)
    assert check(lambda q, t, f: quantile_huber_loss(q, t, f.sigmoid(), kappa), inputs)
    assert check(lambda q: drop_largest(q, 1), (double(2, 3, 4),))
    support, discount = SUPPORT.double(), torch.tensor([0.9, 0.0, 0.5], dtype=torch.float64)
    reward, logits = double(3), double(3, 5, seed=1)
    assert check(lambda r, p: project_distribution(support, r, discount, p.softmax(-1)), (reward, logits))
    assert check(lambda p: expected_values(support, p), (logits,))
