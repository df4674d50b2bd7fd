"""Advantages and value targets over rollout fragments, [T, B].

A truncated episode has `ended` like a terminated one. What its last step is worth beyond its reward, γ V of the final
observation, is passed as `bootstrap`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray


def generalised_advantages(
    rewards: Array,
    values: Array,
    last_value: Array,
    ended: Array,
    gamma: float,
    lam: float,
    bootstrap: Array | float = 0.0,
) -> Array:
    """Return Aₜ = δₜ + γλ Aₜ₊₁, with δₜ = rₜ + γ V(sₜ₊₁) - V(sₜ).

    Schulman et al. 2015, https://arxiv.org/abs/1506.02438, eq. 16. With λ = 1 it is the return over the rest of the
    fragment, minus the value.

    Args:
        rewards: rₜ, [T, B].
        values: V(sₜ), [T, B].
        last_value: V of the observation after the last step, [B].
        ended: whether the episode ends with this step, [T, B].
        gamma: the discount γ.
        lam: the decay λ of later TD errors.
        bootstrap: γ V(sₜ₊₁) where the episode is truncated, and 0 elsewhere, [T, B].

    >>> column = np.array([[1.0], [1.0]])
    >>> generalised_advantages(column, 0 * column, np.array([4.0]), column < 0, gamma=0.5, lam=1.0).ravel().tolist()
    [2.5, 3.0]
    """
    discounts = gamma * ~ended
    deltas = rewards + bootstrap - values
    deltas[:-1] += discounts[:-1] * values[1:]
    deltas[-1] += discounts[-1] * last_value
    decays = lam * discounts
    for t in range(len(deltas) - 2, -1, -1):
        deltas[t] += decays[t] * deltas[t + 1]
    return deltas


class VTrace(NamedTuple):
    """The result of V-trace for a fragment, both [T, B]."""

    targets: Array
    """Value targets vₜ."""
    advantages: Array
    """Advantages of the policy gradient: ρₜ (rₜ + γ vₜ₊₁ - V(sₜ))."""


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
    bootstrap: Array | float = 0.0,
) -> VTrace:
    """Return value targets and advantages for actions of an older policy.

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, eq. 1: vₜ = V(sₜ) + δₜ + γ cₜ (vₜ₊₁ - V(sₜ₊₁)), with
    δₜ = ρₜ (rₜ + γ V(sₜ₊₁) - V(sₜ)), ρₜ = min(ρ̄, π/μ) and cₜ = λ min(c̄, π/μ).

    Args:
        log_ratios: log π(aₜ|sₜ) - log μ(aₜ|sₜ), [T, B]; π is the current policy, μ the behaviour policy.
        rewards: rₜ, [T, B].
        values: V(sₜ), [T, B].
        last_value: V of the observation after the last step, [B].
        ended: whether the episode ends with this step, [T, B].
        gamma: the discount γ.
        lam: the decay λ of later TD errors.
        max_rho: the largest importance weight of an action, ρ̄.
        max_c: the largest importance weight of the steps after it, c̄.
        bootstrap: γ V(sₜ₊₁) where the episode is truncated, and 0 elsewhere, [T, B].

    >>> column = np.array([[1.0], [1.0]])
    >>> v_trace(0 * column, column, 0 * column, np.array([4.0]), column < 0, gamma=0.5).targets.ravel().tolist()
    [2.5, 3.0]
    """
    ratios = np.exp(log_ratios)
    rho, discounts = np.minimum(ratios, max_rho), gamma * ~ended
    rewards = rewards + bootstrap
    next_values = np.concatenate([values[1:], last_value[None]])
    corrections = rho * (rewards + discounts * next_values - values)  # δₜ; after the loop, vₜ - V(sₜ)
    decays = lam * discounts * np.minimum(ratios, max_c)
    for t in range(len(corrections) - 2, -1, -1):
        corrections[t] += decays[t] * corrections[t + 1]
    targets = values + corrections
    next_targets = np.concatenate([targets[1:], last_value[None]])
    return VTrace(targets, rho * (rewards + discounts * next_targets - values))
