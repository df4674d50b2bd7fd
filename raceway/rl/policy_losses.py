"""What losses of off-policy policy gradients are made of, as functions of tensors.

The behaviour policy μ sampled the actions, the target policy π' is an older copy of the policy π that is trained. The
shape of a batch is written as [...]; rollout fragments are [T, B], as in `rl.advantages`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from raceway.rl.advantages import v_trace
from raceway.rl.batch import Batch


class TensorVTrace(NamedTuple):
    """The result of V-trace for a fragment of tensors, both [T, B]."""

    targets: Tensor
    """Value targets vₜ."""
    advantages: Tensor
    """Advantages of the policy gradient: ρₜ (rₜ + γ vₜ₊₁ - V(sₜ))."""


def fragment_v_trace(
    log_ratios: Tensor,
    values: Tensor,
    last_value: Tensor,
    batch: Batch,
    gamma: float,
    *,
    lam: float = 1.0,
    max_rho: float = 1.0,
) -> TensorVTrace:
    """Return V-trace of a fragment of tensors, without a gradient; see `v_trace`.

    It is computed in numpy: for the loop over time, torch takes several times as long.

    Args:
        log_ratios: log-probability ratios of the actions to the behaviour policy, [T, B].
        values: V(sₜ), [T, B].
        last_value: V of the observation after the last step, [B].
        batch: the fragment, with `reward`, `bootstrap` and `ended`.
        gamma: the discount γ.
        lam: the decay λ of later TD errors.
        max_rho: the largest importance weight of an action, ρ̄.

    >>> column, ended = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool)
    >>> batch = {"reward": column, "bootstrap": 0 * column, "ended": ended}
    >>> fragment_v_trace(0 * column, 0 * column, torch.tensor([4.0]), batch, gamma=0.5).targets.flatten().tolist()
    [2.5, 3.0]
    """
    tensors = (log_ratios, values, last_value, *(batch[name] for name in ("reward", "bootstrap", "ended")))
    ratios, estimates, last, rewards, bootstrap, ended = (tensor.detach().cpu().numpy() for tensor in tensors)
    arrays = v_trace(ratios, rewards, estimates, last, ended, gamma, lam=lam, max_rho=max_rho, bootstrap=bootstrap)
    return TensorVTrace(*(torch.from_numpy(array).to(values.device) for array in arrays))


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return min(ρ A, clip(ρ, 1 - ε, 1 + ε) A), [...].

    Schulman et al. 2017 (PPO), https://arxiv.org/abs/1707.06347, eq. 7.

    Args:
        ratio: the probability ratio ρ of the action, [...].
        advantage: its advantage A, [...].
        clip: the clipping range ε.

    >>> clipped_surrogate(torch.tensor([1.5, 1.5, 0.5, 0.5]), torch.tensor([2.0, -2.0, 2.0, -2.0]), 0.25).tolist()
    [2.5, -3.0, 1.0, -1.5]
    """
    return torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def target_worker_ratio(
    log_prob: Tensor, target_log_prob: Tensor, behaviour_log_prob: Tensor, max_ratio: float
) -> Tensor:
    """Return min(μ/π', ρ̄) π/μ = π / max(π', μ/ρ̄), [...].

    Luo et al. 2019 (IMPACT), https://arxiv.org/abs/1912.00167, section 3.1. It is the ratio π/π' to the target policy,
    unless that had hardly chosen the action: the ratio of the trained policy could then have any size.

    Args:
        log_prob: log π(a|s), [...].
        target_log_prob: log π'(a|s), [...].
        behaviour_log_prob: log μ(a|s), [...].
        max_ratio: ρ̄, the largest ratio of the behaviour policy to the target policy.

    >>> policy, target, behaviour = torch.tensor([[0.5, 0.5], [0.25, 0.1], [0.4, 0.4]]).log()
    >>> target_worker_ratio(policy, target, behaviour, max_ratio=2.0).tolist()
    [2.0, 2.5]
    """
    return (log_prob - torch.maximum(target_log_prob, behaviour_log_prob - math.log(max_ratio))).exp()
