"""How a network's numbers become actions, compared with torch's own distributions."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, distributions

from raceway.agents import Categorical, Gaussian, MultiCategorical, distribution_for
from raceway.errors import ConfigError

GRID = spaces.MultiDiscrete([[2, 3, 4], [5, 2, 3]], start=[[0, 1, -2], [7, 0, 0]])


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def assert_fits(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Compare frequencies with Pearson's χ², which has a mean of k - 1 and a variance of 2 (k - 1)."""
    expected = probabilities * counts.sum()
    freedom = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("start", [0, 5, -3])
def test_one_choice_is_torchs_categorical(start: int) -> None:
    ours, params = Categorical(4, start), numbers(10, 4)
    theirs = distributions.Categorical(logits=params)
    actions = torch.arange(10) % 4
    assert ours.size == 4
    assert_close(ours.log_prob(params, actions + start), theirs.log_prob(actions))
    assert_close(ours.entropy(params), theirs.entropy())
    np.testing.assert_array_equal(ours.mode(params.numpy()), params.argmax(-1) + start)


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2, 4]), GRID])
def test_several_choices_are_a_sum_of_torchs(space: spaces.MultiDiscrete) -> None:
    ours = MultiCategorical(space)
    counts = space.nvec.ravel().tolist()
    assert ours.size == sum(counts)
    params = numbers(6, ours.size)
    theirs = [distributions.Categorical(logits=piece) for piece in params.split(counts, -1)]
    space.seed(0)
    actions = torch.from_numpy(np.array([space.sample() for _ in range(6)]))
    chosen = (actions - torch.from_numpy(space.start)).reshape(6, -1).unbind(-1)
    wanted = sum(one.log_prob(action) for one, action in zip(theirs, chosen, strict=True))
    assert isinstance(wanted, Tensor)
    assert_close(ours.log_prob(params, actions), wanted)
    assert_close(ours.entropy(params), torch.stack([one.entropy() for one in theirs]).sum(0))
    modes = np.stack([piece.argmax(-1).numpy() for piece in params.split(counts, -1)], -1)
    np.testing.assert_array_equal(ours.mode(params.numpy()), modes.reshape(6, *space.shape) + space.start)


@pytest.mark.parametrize("shape", [(3,), (2, 2), ()])
def test_vectors_are_torchs_independent_normals(shape: tuple[int, ...]) -> None:
    ours = Gaussian(shape)
    num = ours.num
    params, actions = numbers(7, 2 * num), numbers(7, *shape)
    theirs = distributions.Independent(distributions.Normal(params[:, :num], params[:, num:].exp()), 1)
    assert ours.size == 2 * num
    assert_close(ours.log_prob(params, actions), theirs.log_prob(actions.reshape(7, num)))
    assert_close(ours.entropy(params), theirs.entropy())
    np.testing.assert_array_equal(ours.mode(params.numpy()), params[:, :num].reshape(7, *shape))


@pytest.mark.parametrize("ours", [Categorical(3, 2), MultiCategorical(GRID), Gaussian((2,))])
def test_rows_may_lie_in_more_dimensions(ours: Any) -> None:
    """As fragments have them, [T, B]."""
    params = numbers(5, 4, ours.size)
    drawn = ours.draw(params.numpy(), np.random.default_rng(0))
    assert drawn.shape[:2] == (5, 4)
    actions = torch.from_numpy(drawn)
    flat = ours.log_prob(params.reshape(20, -1), actions.reshape(20, *actions.shape[2:]))
    assert_close(ours.log_prob(params, actions).reshape(20), flat)
    assert ours.entropy(params).shape == (5, 4)


def test_choices_are_drawn_as_often_as_they_should() -> None:
    logits = np.array([1.0, -1.0, 0.0, 2.0], np.float32)
    drawn = Categorical(4, start=10).draw(np.tile(logits, (20_000, 1)), np.random.default_rng(0))
    assert drawn.dtype == np.int64
    assert_fits(np.bincount(drawn - 10, minlength=4), np.exp(logits) / np.exp(logits).sum())


def test_rows_are_drawn_with_their_own_numbers() -> None:
    params = np.full((3, 3), -50.0)
    np.fill_diagonal(params, 50)
    np.testing.assert_array_equal(Categorical(3).draw(params, np.random.default_rng(0)), [0, 1, 2])


def test_several_choices_are_drawn_each_as_often_as_it_should_and_apart() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[4, 0])
    logits = np.array([0.5, -0.5, 1.0, 0.0, -1.0], np.float32)
    drawn = MultiCategorical(space).draw(np.tile(logits, (20_000, 1)), np.random.default_rng(0))
    first = np.exp(logits[:2]) / np.exp(logits[:2]).sum()
    second = np.exp(logits[2:]) / np.exp(logits[2:]).sum()
    both = np.bincount((drawn[:, 0] - 4) * 3 + drawn[:, 1], minlength=6)
    assert_fits(both, np.outer(first, second).ravel())


def test_what_is_drawn_is_of_the_space() -> None:
    params = np.random.default_rng(1).normal(size=(50, 19))
    drawn = MultiCategorical(GRID).draw(params, np.random.default_rng(0))
    assert drawn.shape == (50, 2, 3)
    assert all(GRID.contains(one) for one in drawn)
    assert (drawn.reshape(50, -1).max(0) - drawn.reshape(50, -1).min(0) > 0).all()


def test_vectors_have_the_means_and_deviations_they_should() -> None:
    params = np.array([3.0, -1.0, np.log(0.5), np.log(2.0)], np.float32)
    drawn = Gaussian((2,)).draw(np.tile(params, (20_000, 1)), np.random.default_rng(0))
    assert drawn.dtype == np.float32
    error = np.array([0.5, 2.0]) / np.sqrt(20_000)
    np.testing.assert_array_less(abs(drawn.mean(0) - [3, -1]), 4 * error)
    np.testing.assert_array_less(abs(drawn.std(0) - [0.5, 2]), 4 * error / np.sqrt(2))
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 4 / np.sqrt(20_000)


@pytest.mark.parametrize("ours", [Categorical(3), MultiCategorical(GRID), Gaussian((2, 1))])
def test_drawing_hangs_on_the_generator_alone(ours: Any) -> None:
    params = numbers(9, ours.size).numpy()
    before = params.copy()
    one, same, other = (ours.draw(params, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    np.testing.assert_array_equal(params, before)


@pytest.mark.parametrize(("ours", "start"), [(Categorical(5), 0), (Categorical(5, start=8), 8)])
def test_a_masked_choice_is_never_drawn(ours: Categorical, start: int) -> None:
    params = numbers(4000, 5) * 5
    mask = torch.rand(4000, 5, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[:, 2] |= ~mask.any(1)
    found = ours.masked(params, mask.to(torch.int8)).numpy()
    drawn = ours.draw(found, np.random.default_rng(0)) - start
    assert mask.numpy()[np.arange(4000), drawn].all()
    best = ours.mode(found) - start
    np.testing.assert_array_equal(best, np.where(mask, params, -np.inf).argmax(1))


def test_masks_of_several_choices() -> None:
    space = spaces.MultiDiscrete([3, 2])
    ours = MultiCategorical(space)
    mask = torch.tensor([[1, 0, 1, 0, 1]]).expand(2000, -1)
    drawn = ours.draw(ours.masked(numbers(2000, 5), mask).numpy(), np.random.default_rng(0))
    assert set(map(tuple, drawn.tolist())) == {(0, 1), (2, 1)}


def test_what_is_left_after_a_mask_is_torchs_distribution_of_it() -> None:
    params, allowed = numbers(8, 5), [0, 3, 4]
    mask = torch.zeros(8, 5)
    mask[:, allowed] = 1
    found = Categorical(5).masked(params, mask)
    theirs = distributions.Categorical(logits=params[:, allowed])
    for place, action in enumerate(allowed):
        assert_close(Categorical(5).log_prob(found, torch.full((8,), action)), theirs.log_prob(torch.tensor(place)))
    assert_close(Categorical(5).entropy(found), theirs.entropy())


@pytest.mark.parametrize("allowed", [[1], [0, 2], []])
def test_the_gradient_through_a_mask_is_finite(allowed: list[int]) -> None:
    params = numbers(1, 3).requires_grad_()
    mask = torch.zeros(1, 3)
    mask[:, allowed] = 1
    ours = Categorical(3)
    found = ours.masked(params, mask)
    action = torch.tensor(allowed[:1] or [0])
    (ours.log_prob(found, action).sum() + ours.entropy(found).sum()).backward()
    assert params.grad is not None
    assert params.grad.isfinite().all()
    assert not params.grad[mask == 0].any()


def test_a_mask_goes_with_choices_only() -> None:
    with pytest.raises(ConfigError, match="a mask goes with actions to choose from, not with a Gaussian"):
        Gaussian((2,)).masked(numbers(1, 4), torch.ones(1, 4))


@pytest.mark.parametrize(
    ("space", "kind", "size"),
    [
        (spaces.Discrete(4), Categorical, 4),
        (GRID, MultiCategorical, 19),
        (spaces.Box(-1, 1, (2, 3)), Gaussian, 12),
        (spaces.Box(-1, 1, (2,), np.float64), Gaussian, 4),
    ],
)
def test_which_distribution_a_space_has(space: spaces.Space, kind: type, size: int) -> None:
    found = distribution_for(space)
    assert type(found) is kind
    assert found.size == size


@pytest.mark.parametrize(
    "space", [spaces.MultiBinary(2), spaces.Box(0, 9, (2,), np.int64), spaces.Dict({"a": spaces.Discrete(2)})]
)
def test_spaces_that_have_none(space: spaces.Space) -> None:
    with pytest.raises(ConfigError, match="there is no policy for actions of"):
        distribution_for(space)
