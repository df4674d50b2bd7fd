"""Targets of Q-functions against arrays computed by hand, and against one another."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import raceway.rl
from raceway.rl import (
    double_q_target,
    generalised_advantages,
    inverse_value_rescaling,
    q_lambda_returns,
    q_target,
    rescaled_target,
    retrace,
    sequence_priorities,
    soft_target,
    soft_value,
    value_rescaling,
)

REWARD, DISCOUNT = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.25, 0.0])
"""Three transitions: of one step with γ = 1/2, of two steps, and terminal."""


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def double(*shape: int, seed: int = 0) -> Tensor:
    """Return random numbers for `gradcheck`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def test_q_target_by_hand() -> None:
    next_q = torch.tensor([[4.0, -2.0], [-8.0, -4.0], [5.0, 7.0]])
    # 1 + 4/2; 2 - 4/4; the terminal one is the reward.
    assert q_target(REWARD, DISCOUNT, next_q).tolist() == [3, 1, 3]


def test_double_q_target_by_hand() -> None:
    online, target = (
        torch.tensor([[0.0, 1.0], [3.0, 2.0], [5.0, 7.0]]),
        torch.tensor([[4.0, -2.0], [-8.0, 4.0], [5.0, 7.0]]),
    )
    # Online chooses the second, the first and the second action: 1 - 2/2; 2 - 8/4; 3.
    assert double_q_target(REWARD, DISCOUNT, online, target).tolist() == [0, 0, 3]


def test_targets_of_sequences_are_those_of_their_rows() -> None:
    reward, discount, next_q, online = double(2, 3), double(2, 3), double(2, 3, 4), double(2, 3, 4, seed=1)
    rows = (reward.flatten(), discount.flatten())
    torch.testing.assert_close(q_target(reward, discount, next_q).flatten(), q_target(*rows, next_q.flatten(0, 1)))
    actual = double_q_target(reward, discount, online, next_q).flatten()
    torch.testing.assert_close(actual, double_q_target(*rows, online.flatten(0, 1), next_q.flatten(0, 1)))
    actual = rescaled_target(reward, discount, next_q[..., 0]).flatten()
    torch.testing.assert_close(actual, rescaled_target(*rows, next_q[..., 0].flatten()))


@given(st.integers(0, 1000))
def test_double_q_learning_with_one_network_is_q_learning(seed: int) -> None:
    reward, discount, next_q = double(5, seed=seed), double(5, seed=seed + 1), double(5, 3, seed=seed + 2)
    assert torch.equal(double_q_target(reward, discount, next_q, next_q), q_target(reward, discount, next_q))


def test_soft_target_by_hand() -> None:
    next_q, log_prob = torch.tensor([4.0, 4.0, 4.0]), torch.tensor([-2.0, 3.0, -2.0])
    # 1 + (4 + 1)/2; 2 + (4 - 3/2)/4; 3.
    for alpha in (0.5, torch.tensor(0.5)):
        assert soft_target(REWARD, DISCOUNT, next_q, alpha, log_prob).tolist() == [3.5, 2.625, 3]


def test_soft_value_by_hand() -> None:
    q_values, log_probs = torch.tensor([[8.0, 4.0], [1.0, 3.0]]), torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    # The means 8/4 + 4 · 3/4 and 2, plus a half of the entropies: ln(4)/4 + ln(4/3) · 3/4 and ln 2.
    expected = [5 + 0.5 * (np.log(4) / 4 + np.log(4 / 3) * 3 / 4), 2 + 0.5 * np.log(2)]
    assert soft_value(q_values, log_probs, alpha=0.5).tolist() == pytest.approx(expected)


def test_the_soft_value_is_the_mean_of_soft_targets_over_actions() -> None:
    q_values, log_probs = double(3), double(3, seed=1).log_softmax(-1)
    zero, one = torch.zeros(3), torch.ones(3)
    targets = soft_target(zero, one, q_values, 0.3, log_probs)
    torch.testing.assert_close(soft_value(q_values, log_probs, 0.3), (log_probs.exp() * targets).sum())


def test_masked_actions_have_no_part_in_the_soft_value() -> None:
    log_probs = torch.tensor([1.0, 2.0, -1e9]).log_softmax(-1)
    q_values = torch.tensor([1.0, 2.0, 1000.0])
    torch.testing.assert_close(
        soft_value(q_values, log_probs, 0.5), soft_value(q_values[:2], torch.tensor([1.0, 2.0]).log_softmax(-1), 0.5)
    )


NEVER, LAST = column(0, 0, 0) > 0, torch.tensor([8.0])


def test_q_lambda_returns_by_hand() -> None:
    rewards, max_q = column(1, 2, 3), column(4, 2, 6)
    # 3 + 8/2 = 7; 2 + (7/4 + 6 · 3/4)/2 = 5.125; 1 + (5.125/4 + 2 · 3/4)/2.
    actual = q_lambda_returns(rewards, max_q, LAST, NEVER, gamma=0.5, lam=0.25)
    assert actual.flatten().tolist() == [1 + (5.125 / 4 + 1.5) / 2, 5.125, 7]


def test_a_q_lambda_return_ends_at_a_termination() -> None:
    rewards, max_q, ended = column(1, 2, 3), column(4, 2, 6), column(0, 1, 0) > 0
    # The terminated step is worth its reward 2, and the step before it 1 + (2/4 + 2 · 3/4)/2.
    actual = q_lambda_returns(rewards, max_q, LAST, ended, gamma=0.5, lam=0.25)
    assert actual.flatten().tolist() == [2, 2, 7]
    last = q_lambda_returns(rewards, max_q, LAST, column(0, 0, 1) > 0, gamma=0.5, lam=0.25)
    assert last[-1].tolist() == [3]


def test_a_q_lambda_return_bootstraps_at_a_truncation() -> None:
    rewards, max_q, ended = column(1, 2, 3), column(4, 2, 6), column(0, 1, 0) > 0
    # γ max Q of the final observation is 5: the truncated step is worth 2 + 5, the one before 1 + (7/4 + 2 · 3/4)/2.
    actual = q_lambda_returns(rewards, max_q, LAST, ended, gamma=0.5, lam=0.25, bootstrap=column(0, 5, 0))
    assert actual.flatten().tolist() == [1 + (7 / 4 + 1.5) / 2, 7, 7]


def test_columns_of_a_fragment_are_independent() -> None:
    rewards, max_q = column(1, 2, 3).expand(3, 2), column(4, 2, 6).expand(3, 2)
    terminated, truncated = (
        column(0, 1, 0) * torch.tensor([1.0, 0.0]) > 0,
        column(0, 1, 0) * torch.tensor([0.0, 1.0]) > 0,
    )
    ended, bootstrap = terminated | truncated, 5.0 * truncated
    actual = q_lambda_returns(rewards, max_q, LAST.expand(2), ended, 0.5, 0.25, bootstrap)
    assert actual[1].tolist() == [2, 7]
    zeros = torch.zeros(3, 2)
    actual = retrace(zeros, rewards, max_q, max_q, LAST.expand(2), ended, 0.5, bootstrap=bootstrap)
    assert actual[1].tolist() == [2, 7]


FRAGMENTS = given(
    steps=st.integers(1, 12), width=st.integers(1, 3), seed=st.integers(0, 1000), lam=st.sampled_from([0.0, 0.7, 1.0])
)


def random_fragment(steps: int, width: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return rewards, values, the last value, `ended` and `bootstrap`."""
    random = np.random.default_rng(seed)
    rewards, values, bootstrap = torch.from_numpy(random.normal(size=(3, steps, width)))
    ended, last = torch.from_numpy(random.random((steps, width)) < 0.3), torch.from_numpy(random.normal(size=width))
    return rewards, values, last, ended, bootstrap * ended


@settings(max_examples=50, deadline=None)
@FRAGMENTS
def test_q_lambda_returns_are_those_of_generalised_advantages(steps: int, width: int, seed: int, lam: float) -> None:
    rewards, values, last, ended, bootstrap = random_fragment(steps, width, seed)
    actual = q_lambda_returns(rewards, values, last, ended, 0.9, lam, bootstrap)
    arrays = (tensor.numpy() for tensor in (rewards, values, last, ended))
    advantages = generalised_advantages(*arrays, 0.9, lam, bootstrap.numpy())
    np.testing.assert_allclose(actual, values.numpy() + advantages)


def test_retrace_by_hand() -> None:
    rewards, q_values, values = column(1, 2, 3), column(1, 2, 3), column(4, 2, 6)
    ratios = column(5, 0.25, 3).log()
    # c = λ min(1, π/μ): 1/2, 1/8, 1/2. The last target is 3 + 8/2 = 7; before it, 2 + (6 + (7 - 3)/2)/2 = 6, and
    # 1 + (2 + (6 - 2)/8)/2 = 2.25. The first ratio has no part: the first action is that of which Q is learnt.
    actual = retrace(ratios, rewards, q_values, values, LAST, NEVER, gamma=0.5, lam=0.5)
    assert actual.flatten().tolist() == pytest.approx([2.25, 6, 7])


def test_retrace_stops_at_the_end_of_an_episode() -> None:
    rewards, q_values, values, ended = column(1, 2, 3), column(1, 4, 3), column(4, 2, 6), column(0, 1, 0) > 0
    ratios = column(1, 2, 1).log()
    # Terminated: 2; then 1 + (2 + (2 - 4))/2 = 1. Truncated with γV = 6: 2 + 6; then 1 + (2 + (8 - 4))/2 = 4.
    terminated = retrace(ratios, rewards, q_values, values, LAST, ended, gamma=0.5)
    assert terminated.flatten().tolist() == [1, 2, 7]
    truncated = retrace(ratios, rewards, q_values, values, LAST, ended, gamma=0.5, bootstrap=column(0, 6, 0))
    assert truncated.flatten().tolist() == [4, 8, 7]


@settings(max_examples=50, deadline=None)
@FRAGMENTS
def test_retrace_with_a_deterministic_policy_is_q_lambda(steps: int, width: int, seed: int, lam: float) -> None:
    """Where the behaviour policy takes the greedy action, V(s) = Q(s, a) = max Q(s, ·) and all ratios are 1."""
    rewards, values, last, ended, bootstrap = random_fragment(steps, width, seed)
    actual = retrace(torch.zeros_like(rewards), rewards, values, values, last, ended, 0.9, lam=lam, bootstrap=bootstrap)
    torch.testing.assert_close(actual, q_lambda_returns(rewards, values, last, ended, 0.9, lam, bootstrap))


def test_fragments_keep_their_precision() -> None:
    """In 32 bits, 0.9 has an error of 2e-8."""
    rewards, zero = torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    last, ended = torch.ones(1, dtype=torch.float64), torch.tensor([[False]])
    assert q_lambda_returns(rewards, zero, last, ended, 0.9, 1.0).item() == 0.9
    assert retrace(zero, rewards, zero, zero, last, ended, 0.9).item() == 0.9


def test_an_infinite_ratio_has_a_gradient() -> None:
    log_ratios = torch.tensor([[0.0], [1000.0]], requires_grad=True)
    ones = torch.ones(2, 1)
    retrace(log_ratios, ones, ones, ones, torch.ones(1), ones < 0, 0.9).sum().backward()
    assert log_ratios.grad is not None
    assert log_ratios.grad.flatten().tolist() == [0, 0]


def test_value_rescaling_by_hand() -> None:
    # √9 - 1 + 8/4; and it is odd: -(√4 - 1) - 3/4.
    assert value_rescaling(torch.tensor([8.0, 0.0, -3.0]), epsilon=0.25).tolist() == [4, 0, -1.75]
    assert inverse_value_rescaling(torch.tensor([4.0, 0.0, -1.75]), epsilon=0.25).tolist() == [8, 0, -3]
    # √100 - 1 + 0.099 with the usual ε.
    assert value_rescaling(torch.tensor(99.0)).item() == pytest.approx(9.099)


def test_value_rescaling_is_accurate_in_32_bits() -> None:
    magnitudes = torch.logspace(-3, 6, 1000)
    values = torch.cat([magnitudes, -magnitudes])
    torch.testing.assert_close(inverse_value_rescaling(value_rescaling(values)), values, rtol=1e-6, atol=0)
    torch.testing.assert_close(value_rescaling(inverse_value_rescaling(values)), values, rtol=1e-6, atol=0)
    expected = values.double().sign() * ((values.double().abs() + 1).sqrt() - 1) + 1e-3 * values.double()
    torch.testing.assert_close(value_rescaling(values).double(), expected, rtol=1e-6, atol=0)


@given(st.floats(-1e6, 1e6), st.sampled_from([0.0, 1e-3, 0.1]))
def test_inverse_value_rescaling_is_the_inverse(value: float, epsilon: float) -> None:
    x = torch.tensor(value, dtype=torch.float64)
    torch.testing.assert_close(
        inverse_value_rescaling(value_rescaling(x, epsilon), epsilon), x, rtol=1e-12, atol=1e-300
    )


def test_the_inverse_is_that_of_the_paper() -> None:
    x, epsilon = torch.linspace(-50, 50, 101, dtype=torch.float64), 1e-2
    root = ((1 + 4 * epsilon * (x.abs() + 1 + epsilon)).sqrt() - 1) / (2 * epsilon)
    torch.testing.assert_close(inverse_value_rescaling(x, epsilon), x.sign() * (root**2 - 1))


def test_rescaled_target_by_hand() -> None:
    # With ε = 0, h⁻¹(2) = 8 and h⁻¹(-1) = -3: h(4 + 8/2) = 2, h(-3/4 - 3/4) = -(√2.5 - 1), and h(15) = 3 at a terminal.
    reward, discount = torch.tensor([4.0, -0.75, 15.0]), torch.tensor([0.5, 0.25, 0.0])
    actual = rescaled_target(reward, discount, torch.tensor([2.0, -1.0, 7.0]), epsilon=0.0)
    assert actual.tolist() == pytest.approx([2, 1 - np.sqrt(2.5), 3])


def test_sequence_priorities_by_hand() -> None:
    errors = torch.tensor([[9.0, -3.0, 1.0], [1.0, -2.0, -6.0], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[False, True, True], [True, True, True], [False, False, False]])
    # 0.9 · 3 + 0.1 · 2, 0.9 · 6 + 0.1 · 3, and 0 without any step.
    assert sequence_priorities(errors, mask).tolist() == pytest.approx([2.9, 5.7, 0])
    assert sequence_priorities(errors, mask, eta=0.0).tolist() == [2, 3, 0]
    assert sequence_priorities(errors, mask, eta=1.0).tolist() == [3, 6, 0]


def test_errors_of_steps_that_are_not_trained_may_be_anything() -> None:
    errors, mask = torch.tensor([[torch.nan, 2.0], [torch.inf, -4.0]]), torch.tensor([[False, True]] * 2)
    assert sequence_priorities(errors, mask).tolist() == [2, 4]


def test_gradients() -> None:
    rows, more, actions = double(4), double(4, seed=1), double(4, 3)
    discount = torch.tensor([0.9, 0.0, 0.5, 0.9], dtype=torch.float64)
    check = torch.autograd.gradcheck
    assert check(lambda r, q: q_target(r, discount, q), (rows, actions))
    assert check(lambda r, q: double_q_target(r, discount, actions, q), (rows, double(4, 3, seed=1)))
    assert check(lambda r, q, a, p: soft_target(r, discount, q, a, p), (rows, more, double(), double(4, seed=2)))
    assert check(lambda q, p, a: soft_value(q, p.log_softmax(-1), a), (actions, double(4, 3, seed=1), double()))
    assert check(value_rescaling, (rows,))
    assert check(inverse_value_rescaling, (rows,))
    assert check(lambda r, q: rescaled_target(r, discount, q), (rows, more))
    mask = torch.tensor([[True, False, True]] * 4)
    assert check(lambda e: sequence_priorities(e, mask), (actions,))


def test_gradients_of_fragments() -> None:
    rewards, values, last, ended, bootstrap = random_fragment(steps=4, width=2, seed=0)
    inputs = tuple(tensor.clone().requires_grad_() for tensor in (rewards, values, last, bootstrap))
    assert torch.autograd.gradcheck(lambda r, v, x, b: q_lambda_returns(r, v, x, ended, 0.9, 0.7, b), inputs)
    log_ratios, q_values = double(4, 2), double(4, 2, seed=1)
    assert torch.autograd.gradcheck(
        lambda c, q, r, v, x, b: retrace(c, r, q, v, x, ended, 0.9, lam=0.7, bootstrap=b),
        (log_ratios, q_values, *inputs),
    )


@pytest.mark.parametrize("rescale", [value_rescaling, inverse_value_rescaling])
def test_rescaling_has_a_gradient_at_zero(rescale: object) -> None:
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(rescale(zero).sum(), zero)  # type: ignore[operator]
    # h'(0) = 1/2 + ε
    assert gradient.item() == pytest.approx(0.501 if rescale is value_rescaling else 1 / 0.501)


def test_arguments_are_not_changed() -> None:
    rewards, values, last, ended, bootstrap = random_fragment(steps=4, width=2, seed=0)
    before = [tensor.clone() for tensor in (rewards, values, last, ended, bootstrap)]
    q_lambda_returns(rewards, values, last, ended, 0.9, 0.7, bootstrap)
    retrace(values, rewards, values, values, last, ended, 0.9, bootstrap=bootstrap)
    for tensor, copy in zip((rewards, values, last, ended, bootstrap), before, strict=True):
        assert torch.equal(tensor, copy)


def test_the_package_lists_its_names_and_loads_torch_only_for_those_that_need_it() -> None:
    for name in raceway.rl.__all__:
        assert getattr(raceway.rl, name) is not None
    assert dir(raceway.rl) == sorted(raceway.rl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'q_targets'"):
        raceway.rl.q_targets  # noqa: B018
    program = (
        "import sys, raceway.rl, raceway.replay; assert 'torch' not in sys.modules\n"
        "from raceway.rl import q_target; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
