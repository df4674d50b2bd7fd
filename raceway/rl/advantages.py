"""How much better than expected: advantages and value targets over fragments of experience, [T, B].

An episode that was cut short is one that ended here: what would have followed must be in its last reward already.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray


def generalised_advantages(
    rewards: Array, values: Array, last_value: Array, ended: Array, gamma: float, lam: float
) -> Array:
    """Return Aₜ = δₜ + γλ Aₜ₊₁, with δₜ = rₜ + γ V(sₜ₊₁) - V(sₜ).

    Schulman et al. 2015, https://arxiv.org/abs/1506.02438, eq. 16. With λ = 1 it is the return over the rest of the
    fragment, minus the value.

    Args:
        rewards: rₜ, [T, B].
        values: V(sₜ), [T, B].
        last_value: V of what is seen after the last step, [B].
        ended: whether the episode ends with this step, [T, B].
        gamma: the discount γ.
        lam: how far to look, λ.

    >>> column = np.array([[1.0], [1.0]])
    >>> generalised_advantages(column, 0 * column, np.array([4.0]), column < 0, gamma=0.5, lam=1.0).ravel().tolist()
    [2.5, 3.0]
    """
    goes_on = gamma * ~ended
    deltas = rewards - values
    deltas[:-1] += goes_on[:-1] * values[1:]
    deltas[-1] += goes_on[-1] * last_value
    fades = lam * goes_on
    for now in range(len(deltas) - 2, -1, -1):
        deltas[now] += fades[now] * deltas[now + 1]
    return deltas


class VTrace(NamedTuple):
    """What V-trace gives for a fragment."""

    targets: Array
    """Of the values, vₜ."""
    advantages: Array
    """Of the policy gradient: ρₜ (rₜ + γ vₜ₊₁ - V(sₜ))."""


def v_trace(
    log_ratios: Array,
    rewards: Array,
    values: Array,
    last_value: Array,
    ended: Array,
    gamma: float,
    *,
    lam: float = 1.0,
    max_rho: float = 1.0,
    max_c: float = 1.0,
) -> VTrace:
    """Return targets and advantages for actions that an older policy chose.

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, eq. 1: vₜ = V(sₜ) + δₜ + γ cₜ (vₜ₊₁ - V(sₜ₊₁)), with
    δₜ = ρₜ (rₜ + γ V(sₜ₊₁) - V(sₜ)), ρₜ = min(ρ̄, π/μ) and cₜ = λ min(c̄, π/μ).

    Args:
        log_ratios: log π(aₜ|sₜ) - log μ(aₜ|sₜ), [T, B]; π is the policy now, μ the one that chose.
        rewards: rₜ, [T, B].
        values: V(sₜ), [T, B].
        last_value: V of what is seen after the last step, [B].
        ended: whether the episode ends with this step, [T, B].
        gamma: the discount γ.
        lam: how far to look, λ.
        max_rho: the most that an action counts, ρ̄.
        max_c: the most that what follows it counts, c̄.

    >>> column = np.array([[1.0], [1.0]])
    >>> v_trace(0 * column, column, 0 * column, np.array([4.0]), column < 0, gamma=0.5).targets.ravel().tolist()
    [2.5, 3.0]
    """
    ratios = np.exp(log_ratios)
    rho, goes_on = np.minimum(ratios, max_rho), gamma * ~ended
    following = np.concatenate([values[1:], last_value[None]])
    above = rho * (rewards + goes_on * following - values)  # vₜ - V(sₜ), once what follows is added
    fades = lam * goes_on * np.minimum(ratios, max_c)
    for now in range(len(above) - 2, -1, -1):
        above[now] += fades[now] * above[now + 1]
    targets = values + above
    after = np.concatenate([targets[1:], last_value[None]])
    return VTrace(targets, rho * (rewards + goes_on * after - values))
