"""Advantages and V-trace against arrays computed by hand, and against one another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raceway.rl import generalised_advantages, v_trace


def column(*values: float) -> np.ndarray:
    return np.array(values, float)[:, None]


NEVER, LAST = column(0, 0, 0) > 0, np.array([8.0])


def test_generalised_advantages_by_hand() -> None:
    rewards, values = column(1, 2, 3), column(4, 2, 6)
    # δ = r + V(s')/2 - V(s): 1 + 1 - 4, 2 + 3 - 2, 3 + 4 - 6; and each adds a quarter of the next.
    actual = generalised_advantages(rewards, values, LAST, NEVER, gamma=0.5, lam=0.5)
    assert actual.ravel().tolist() == [-2 + (3 + 1 / 4) / 4, 3 + 1 / 4, 1]


def test_nothing_after_the_end_of_an_episode_counts() -> None:
    rewards, values = column(1, 2, 3), column(4, 2, 6)
    actual = generalised_advantages(rewards, values, LAST, column(0, 1, 0) > 0, gamma=0.5, lam=0.5)
    assert actual.ravel().tolist() == [-2 + 0 / 4, 0, 1]
    last = generalised_advantages(rewards, values, LAST, column(0, 0, 1) > 0, gamma=0.5, lam=0.0)
    assert last.ravel().tolist() == [-2, 3, -3]


def test_v_trace_by_hand() -> None:
    rewards, values = column(1, 2, 3), column(4, 2, 6)
    ratios = np.log(column(0.5, 3, 1))
    # ρ = 1/2, 1 (clipped), 1. δ = -1, 3, 1. v - V: δ + c/2 · next: 1; 3 + 1/2; -1 + 1/4 · 7/2.
    actual = v_trace(ratios, rewards, values, LAST, NEVER, gamma=0.5)
    corrections = np.array([-1 + 0.25 * 3.5, 3.5, 1])
    assert actual.targets.ravel() == pytest.approx(values.ravel() + corrections)
    # ρ (r + v'/2 - V)
    assert actual.advantages.ravel() == pytest.approx([0.5 * (1 + 5.5 / 2 - 4), 2 + 7 / 2 - 2, 3 + 8 / 2 - 6])


def test_v_trace_with_other_clipping() -> None:
    ratios = np.log(column(0.5, 3, 1))
    rewards, values = column(1, 2, 3), column(4, 2, 6)
    actual = v_trace(ratios, rewards, values, LAST, NEVER, gamma=0.5, max_rho=2.0, max_c=0.5)
    # ρ = 1/2, 2, 1; c = 1/2, 1/2, 1/2.
    second = 2 * 3 + 0.25 * 1
    assert actual.targets.ravel() == pytest.approx(values.ravel() + np.array([-1 + 0.25 * second, second, 1]))


def test_a_truncated_step_bootstraps() -> None:
    rewards, values, truncated = column(1, 2, 3), column(4, 2, 6), column(0, 1, 0) > 0
    bootstrap = column(0, 5, 0)
    actual = generalised_advantages(rewards, values, LAST, truncated, gamma=0.5, lam=0.5, bootstrap=bootstrap)
    # δ of the truncated step is 2 + 5 - 2, and nothing after it counts.
    assert actual.ravel().tolist() == [-2 + 5 / 4, 5, 1]
    corrected = v_trace(0 * rewards, rewards, values, LAST, truncated, gamma=0.5, lam=0.5, bootstrap=bootstrap)
    assert corrected.targets.ravel().tolist() == [4 - 2 + 5 / 4, 2 + 5, 6 + 1]
    assert corrected.advantages.ravel().tolist() == [1 + 7 / 2 - 4, 5, 1]


@settings(max_examples=50, deadline=None)
@given(
    steps=st.integers(1, 12), width=st.integers(1, 3), seed=st.integers(0, 1000), lam=st.sampled_from([0.0, 0.7, 1.0])
)
def test_on_policy_v_trace_is_generalised_advantages(steps: int, width: int, seed: int, lam: float) -> None:
    random = np.random.default_rng(seed)
    rewards, values = random.normal(size=(2, steps, width))
    last, ended = random.normal(size=width), random.random((steps, width)) < 0.2
    advantages = generalised_advantages(rewards, values, last, ended, 0.9, lam)
    actual = v_trace(np.zeros((steps, width)), rewards, values, last, ended, 0.9, lam=lam)
    np.testing.assert_allclose(actual.targets, values + advantages)
