"""V-trace of fragments of tensors, probability ratios and the clipped surrogate, against arrays computed by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from raceway.rl import Batch, clipped_surrogate, fragment_v_trace, target_worker_ratio, v_trace


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.1, 2.0, 2.2, 2.0),
        (1.5, 2.0, 2.4, 0.0),  # the ratio has moved as far as it may, in the direction of the advantage
        (0.5, 2.0, 1.0, 2.0),  # it has moved against it, so that the way back is open
        (0.9, -2.0, -1.8, -2.0),
        (0.5, -2.0, -1.6, 0.0),
        (1.5, -2.0, -3.0, -2.0),
    ],
)
def test_the_clipped_surrogate_by_hand(ratio: float, advantage: float, expected: float, slope: float) -> None:
    variable = torch.tensor(ratio, requires_grad=True)
    surrogate = clipped_surrogate(variable, torch.tensor(advantage), 0.2)
    assert float(surrogate.detach()) == pytest.approx(expected)
    surrogate.backward()
    assert float(variable.grad) == pytest.approx(slope)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "target", "behaviour", "expected"),
    [
        (0.5, 0.5, 0.5, 1.0),  # on-policy
        (0.6, 0.4, 0.4, 1.5),  # π/π'
        (0.6, 0.4, 0.1, 1.5),  # π/π', although μ is much smaller
        (0.6, 0.4, 0.8, 1.5),  # μ/π' is 2, just not limited
        (0.6, 0.2, 0.8, 1.5),  # μ/π' is 4: 2 π/μ instead of π/π', which is 3
        (0.1, 0.01, 0.5, 0.4),  # μ/π' is 50: 2 π/μ instead of 10
    ],
)
def test_the_ratio_to_the_target_policy_by_hand(
    policy: float, target: float, behaviour: float, expected: float
) -> None:
    log_probs = [torch.tensor(math.log(share), dtype=torch.float64) for share in (policy, target, behaviour)]
    ratio = target_worker_ratio(*log_probs, max_ratio=2.0)
    assert float(ratio) == pytest.approx(expected)
    assert float(ratio) == pytest.approx(min(behaviour / target, 2.0) * policy / behaviour)


def test_the_gradient_of_the_ratio_is_that_of_the_trained_policy() -> None:
    log_probs = torch.log(torch.tensor([[0.6, 0.6], [0.4, 0.2], [0.4, 0.8]])).requires_grad_()
    target_worker_ratio(log_probs[0], log_probs[1].detach(), log_probs[2].detach(), 2.0).sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad[0].tolist() == pytest.approx([1.5, 1.5])  # dρ/d log π = ρ


def example_fragment() -> tuple[Batch, Tensor, Tensor, Tensor]:
    """Return a fragment of three steps and two slots, log-ratios, values, and values after the fragment.

    The episode of the first slot ends with its second step, that of the second slot is truncated with its first one.
    """
    batch = {
        "reward": torch.tensor([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]]),
        "bootstrap": torch.tensor([[0.0, 4.0], [0.0, 0.0], [0.0, 0.0]]),
        "ended": torch.tensor([[False, True], [True, False], [False, False]]),
    }
    log_ratios = torch.log(torch.tensor([[0.5, 3.0], [1.0, 1.0], [2.0, 0.5]]))
    values = torch.tensor([[4.0, 3.0], [2.0, 8.0], [6.0, 2.0]])
    return batch, log_ratios, values, torch.tensor([8.0, 10.0])


def test_v_trace_of_a_fragment_by_hand() -> None:
    """γ = λ = 1/2: what comes after the end of an episode, or after the last step of the other slot, has no effect."""
    batch, log_ratios, values, last_value = example_fragment()
    targets, advantages = fragment_v_trace(log_ratios, values, last_value, batch, 0.5, lam=0.5)
    # First slot: δ₁ = 1/2 (1 + 2/2 - 4), δ₂ = 2 - 2, δ₃ = 3 + 8/2 - 6. v₁ - V₁ = δ₁ + 1/2 · 1/2 · 1/2 · 0.
    # Second slot: δ₁ = 5 + 4 - 3, δ₂ = 6 + 2/2 - 8, δ₃ = 1/2 (7 + 10/2 - 2). v₂ - V₂ = δ₂ + 1/4 δ₃.
    first, second = column(-1, 0, 1), column(6, -1 + 5 / 4, 5)
    torch.testing.assert_close((targets - values).float(), torch.cat([first, second], 1))
    # ρ (r + γ v' - V), with the targets above
    assert advantages[:, 0].tolist() == pytest.approx([0.5 * (1 + 2 / 2 - 4), 0, 1])
    assert advantages[:, 1].tolist() == pytest.approx([6, 6 + 7 / 2 - 8, 0.5 * (7 + 10 / 2 - 2)])


def test_no_slot_and_no_later_episode_leaks_into_a_target() -> None:
    batch, log_ratios, values, last_value = example_fragment()
    before = fragment_v_trace(log_ratios, values, last_value, batch, 0.9).targets
    changed_last, changed_values, changed_ratios = last_value.clone(), values.clone(), log_ratios.clone()
    changed_last[1] = -1000
    changed_values[2, 0], changed_ratios[2, 0] = 1000, 5
    after = fragment_v_trace(changed_ratios, changed_values, changed_last, batch, 0.9).targets
    differs = (before != after).tolist()
    # the second slot from after its truncated step on, the first one only in the step of its new episode
    assert differs == [[False, False], [False, True], [True, True]]


def test_it_is_v_trace_and_has_no_gradient() -> None:
    batch, log_ratios, values, last_value = example_fragment()
    variables = values.clone().requires_grad_()
    actual = fragment_v_trace(log_ratios, variables, last_value, batch, 0.9, lam=0.8, max_rho=2.0)
    arrays = [tensor.numpy() for tensor in (log_ratios, batch["reward"], values, last_value, batch["ended"])]
    expected = v_trace(*arrays, 0.9, lam=0.8, max_rho=2.0, bootstrap=batch["bootstrap"].numpy())
    np.testing.assert_array_equal(actual.targets.numpy(), expected.targets)
    np.testing.assert_array_equal(actual.advantages.numpy(), expected.advantages)
    assert not actual.targets.requires_grad
