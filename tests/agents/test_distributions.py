"""Distributions of actions, compared with torch's."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, distributions

from raceway.agents import Categorical, Gaussian, MultiCategorical, distribution_for
from raceway.agents.distributions import BoundedGaussian
from raceway.errors import ConfigError

GRID = spaces.MultiDiscrete([[2, 3, 4], [5, 2, 3]], start=[[0, 1, -2], [7, 0, 0]])


def random_params(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def assert_fits(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Compare frequencies with Pearson's χ², which has a mean of k - 1 and a variance of 2 (k - 1)."""
    expected = probabilities * counts.sum()
    degrees = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < degrees + 4 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("start", [0, 5, -3])
def test_categorical_equals_torchs(start: int) -> None:
    distribution, params = Categorical(4, start), random_params(10, 4)
    torch_distribution = distributions.Categorical(logits=params)
    actions = torch.arange(10) % 4
    assert distribution.size == 4
    assert_close(distribution.log_prob(params, actions + start), torch_distribution.log_prob(actions))
    assert_close(distribution.entropy(params), torch_distribution.entropy())
    np.testing.assert_array_equal(distribution.mode(params.numpy()), params.argmax(-1) + start)


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2, 4]), GRID])
def test_multi_categorical_equals_a_sum_of_torchs(space: spaces.MultiDiscrete) -> None:
    distribution = MultiCategorical(space)
    counts = space.nvec.ravel().tolist()
    assert distribution.size == sum(counts)
    params = random_params(6, distribution.size)
    torch_distribution = [distributions.Categorical(logits=piece) for piece in params.split(counts, -1)]
    space.seed(0)
    actions = torch.from_numpy(np.array([space.sample() for _ in range(6)]))
    columns = (actions - torch.from_numpy(space.start)).reshape(6, -1).unbind(-1)
    expected = sum(part.log_prob(action) for part, action in zip(torch_distribution, columns, strict=True))
    assert isinstance(expected, Tensor)
    assert_close(distribution.log_prob(params, actions), expected)
    assert_close(distribution.entropy(params), torch.stack([part.entropy() for part in torch_distribution]).sum(0))
    modes = np.stack([piece.argmax(-1).numpy() for piece in params.split(counts, -1)], -1)
    np.testing.assert_array_equal(distribution.mode(params.numpy()), modes.reshape(6, *space.shape) + space.start)


@pytest.mark.parametrize("shape", [(3,), (2, 2), ()])
def test_gaussian_equals_torchs_independent_normals(shape: tuple[int, ...]) -> None:
    distribution = Gaussian(shape)
    num = distribution.num
    params, actions = random_params(7, 2 * num), random_params(7, *shape)
    torch_distribution = distributions.Independent(distributions.Normal(params[:, :num], params[:, num:].exp()), 1)
    assert distribution.size == 2 * num
    assert_close(distribution.log_prob(params, actions), torch_distribution.log_prob(actions.reshape(7, num)))
    assert_close(distribution.entropy(params), torch_distribution.entropy())
    np.testing.assert_array_equal(distribution.mode(params.numpy()), params[:, :num].reshape(7, *shape))


@pytest.mark.parametrize("distribution", [Categorical(3, 2), MultiCategorical(GRID), Gaussian((2,))])
def test_rows_may_have_several_dimensions(distribution: Any) -> None:
    """As in fragments, [T, B]."""
    params = random_params(5, 4, distribution.size)
    sampled = distribution.sample(params.numpy(), np.random.default_rng(0))
    assert sampled.shape[:2] == (5, 4)
    actions = torch.from_numpy(sampled)
    flat = distribution.log_prob(params.reshape(20, -1), actions.reshape(20, *actions.shape[2:]))
    assert_close(distribution.log_prob(params, actions).reshape(20), flat)
    assert distribution.entropy(params).shape == (5, 4)


def test_actions_are_sampled_with_their_probabilities() -> None:
    logits = np.array([1.0, -1.0, 0.0, 2.0], np.float32)
    actions = Categorical(4, start=10).sample(np.tile(logits, (20_000, 1)), np.random.default_rng(0))
    assert actions.dtype == np.int64
    assert_fits(np.bincount(actions - 10, minlength=4), np.exp(logits) / np.exp(logits).sum())


def test_rows_are_sampled_with_their_own_logits() -> None:
    params = np.full((3, 3), -50.0)
    np.fill_diagonal(params, 50)
    np.testing.assert_array_equal(Categorical(3).sample(params, np.random.default_rng(0)), [0, 1, 2])


def test_several_actions_are_sampled_independently() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[4, 0])
    logits = np.array([0.5, -0.5, 1.0, 0.0, -1.0], np.float32)
    actions = MultiCategorical(space).sample(np.tile(logits, (20_000, 1)), np.random.default_rng(0))
    first = np.exp(logits[:2]) / np.exp(logits[:2]).sum()
    second = np.exp(logits[2:]) / np.exp(logits[2:]).sum()
    both = np.bincount((actions[:, 0] - 4) * 3 + actions[:, 1], minlength=6)
    assert_fits(both, np.outer(first, second).ravel())


def test_sampled_actions_are_in_the_space() -> None:
    params = np.random.default_rng(1).normal(size=(50, 19))
    actions = MultiCategorical(GRID).sample(params, np.random.default_rng(0))
    assert actions.shape == (50, 2, 3)
    assert all(GRID.contains(action) for action in actions)
    assert (actions.reshape(50, -1).max(0) - actions.reshape(50, -1).min(0) > 0).all()


def test_gaussian_samples_have_the_right_means_and_deviations() -> None:
    params = np.array([3.0, -1.0, np.log(0.5), np.log(2.0)], np.float32)
    actions = Gaussian((2,)).sample(np.tile(params, (20_000, 1)), np.random.default_rng(0))
    assert actions.dtype == np.float32
    error = np.array([0.5, 2.0]) / np.sqrt(20_000)
    np.testing.assert_array_less(abs(actions.mean(0) - [3, -1]), 4 * error)
    np.testing.assert_array_less(abs(actions.std(0) - [0.5, 2]), 4 * error / np.sqrt(2))
    assert abs(np.corrcoef(actions.T)[0, 1]) < 4 / np.sqrt(20_000)


@pytest.mark.parametrize("distribution", [Categorical(3), MultiCategorical(GRID), Gaussian((2, 1))])
def test_sampling_depends_on_the_generator_alone(distribution: Any) -> None:
    params = random_params(9, distribution.size).numpy()
    before = params.copy()
    first, again, other = (distribution.sample(params, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(params, before)


@pytest.mark.parametrize(("distribution", "start"), [(Categorical(5), 0), (Categorical(5, start=8), 8)])
def test_a_masked_action_is_never_sampled(distribution: Categorical, start: int) -> None:
    params = random_params(4000, 5) * 5
    mask = torch.rand(4000, 5, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[:, 2] |= ~mask.any(1)
    masked = distribution.apply_mask(params, mask.to(torch.int8)).numpy()
    actions = distribution.sample(masked, np.random.default_rng(0)) - start
    assert mask.numpy()[np.arange(4000), actions].all()
    best = distribution.mode(masked) - start
    np.testing.assert_array_equal(best, np.where(mask, params, -np.inf).argmax(1))


def test_masks_of_several_actions() -> None:
    space = spaces.MultiDiscrete([3, 2])
    distribution = MultiCategorical(space)
    mask = torch.tensor([[1, 0, 1, 0, 1]]).expand(2000, -1)
    actions = distribution.sample(
        distribution.apply_mask(random_params(2000, 5), mask).numpy(), np.random.default_rng(0)
    )
    assert set(map(tuple, actions.tolist())) == {(0, 1), (2, 1)}


def test_a_masked_distribution_equals_torchs_over_the_allowed_actions() -> None:
    params, allowed = random_params(8, 5), [0, 3, 4]
    mask = torch.zeros(8, 5)
    mask[:, allowed] = 1
    masked = Categorical(5).apply_mask(params, mask)
    torch_distribution = distributions.Categorical(logits=params[:, allowed])
    for index, action in enumerate(allowed):
        assert_close(
            Categorical(5).log_prob(masked, torch.full((8,), action)), torch_distribution.log_prob(torch.tensor(index))
        )
    assert_close(Categorical(5).entropy(masked), torch_distribution.entropy())


@pytest.mark.parametrize("allowed", [[1], [0, 2], []])
def test_the_gradient_through_a_mask_is_finite(allowed: list[int]) -> None:
    params = random_params(1, 3).requires_grad_()
    mask = torch.zeros(1, 3)
    mask[:, allowed] = 1
    distribution = Categorical(3)
    masked = distribution.apply_mask(params, mask)
    action = torch.tensor(allowed[:1] or [0])
    (distribution.log_prob(masked, action).sum() + distribution.entropy(masked).sum()).backward()
    assert params.grad is not None
    assert params.grad.isfinite().all()
    assert not params.grad[mask == 0].any()


def test_a_mask_needs_discrete_actions() -> None:
    with pytest.raises(ConfigError, match="an action mask needs discrete actions, not a Gaussian"):
        Gaussian((2,)).apply_mask(random_params(1, 4), torch.ones(1, 4))


@pytest.mark.parametrize(
    ("space", "kind", "size"),
    [
        (spaces.Discrete(4), Categorical, 4),
        (GRID, MultiCategorical, 19),
        (spaces.Box(-1, 1, (2, 3)), Gaussian, 12),
        (spaces.Box(-1, 1, (2,), np.float64), Gaussian, 4),
    ],
)
def test_the_distribution_of_a_space(space: spaces.Space, kind: type, size: int) -> None:
    distribution = distribution_for(space)
    assert type(distribution) is kind
    assert distribution.size == size


@pytest.mark.parametrize(
    "space", [spaces.MultiBinary(2), spaces.Box(0, 9, (2,), np.int64), spaces.Dict({"a": spaces.Discrete(2)})]
)
def test_unsupported_action_spaces_are_refused(space: spaces.Space) -> None:
    with pytest.raises(ConfigError, match=r"are not supported. Use Discrete"):
        distribution_for(space)


def test_bounded_gaussian_equals_torchs_before_scaling() -> None:
    """Bounds -2 to 4: actions are 1 + 3 times numbers around tanh of the outputs."""
    distribution, params = BoundedGaussian(spaces.Box(-2.0, 4.0, (2,), np.float32)), random_params(7, 4)
    params[0, 2:] = -9.0  # below the limit of -5
    deviations = params[:, 2:].clamp(-5, 2).exp()
    torch_distribution = distributions.Normal(params[:, :2].tanh(), deviations)
    numbers = 2 * torch.rand(7, 2, generator=torch.Generator().manual_seed(1)) - 1
    numbers[1] = torch.tensor([-1.0, 1.0])  # at the bounds
    actions = 1 + 3 * numbers
    assert_close(distribution.log_prob(params, actions), torch_distribution.log_prob(numbers).sum(-1))
    assert distribution.log_prob(params, actions).isfinite().all()
    assert_close(distribution.best_actions(params), 1 + 3 * params[:, :2].tanh())
    np.testing.assert_allclose(distribution.mode(params.numpy()), distribution.best_actions(params), rtol=1e-5)
    assert_close(distribution.scaled_tensor(distribution.unscaled_tensor(actions)), actions)
    assert (distribution.size, distribution.head_size) == (4, 2)


def test_samples_of_a_bounded_gaussian_are_clipped() -> None:
    distribution = BoundedGaussian(spaces.Box(-2.0, 4.0, (1,), np.float32))
    params = np.tile(np.array([[0.3, -1.0]], np.float32), (20_000, 1))
    samples = distribution.sample(params, np.random.default_rng(0))
    expected = np.clip(np.tanh(0.3) + np.exp(-1) * np.random.default_rng(1).standard_normal(100_000), -1, 1)
    assert samples.mean() == pytest.approx(1 + 3 * expected.mean(), abs=0.03)
    assert samples.std() == pytest.approx(3 * expected.std(), abs=0.03)
    assert (samples.min(), samples.max()) == (-2, 4)
