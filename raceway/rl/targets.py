"""Targets of Q-functions, as functions of tensors.

The arguments `reward` and `discount` are the columns of transitions, [N], or of sequences, [N, L]: the shape is written
as [...]. The discount is γ, γⁿ after n steps, and 0 after termination, so that a terminal target is the reward alone.

Rollout fragments are [T, B], as in `rl.advantages`: a truncated episode has `ended` like a terminated one, and what its
last step is worth beyond its reward, γ times the value of the final observation, is passed as `bootstrap`.

Gradients pass through all functions. Losses call them under `torch.no_grad()` for targets that are constants.
"""

from __future__ import annotations

import torch
from torch import Tensor


def q_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """Return r + γ max Q'(s', ·), [...].

    Mnih et al. 2015, https://doi.org/10.1038/nature14236, algorithm 1.

    Args:
        reward: r, [...].
        discount: γ, or 0 after termination, [...].
        next_q: Q'(s', ·) of the target network, [..., num_actions].

    >>> q_target(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]), torch.tensor([[2.0, 4.0], [2.0, 4.0]])).tolist()
    [3.0, 1.0]
    """
    return reward + discount * next_q.amax(-1)


def double_q_target(reward: Tensor, discount: Tensor, next_q_online: Tensor, next_q_target: Tensor) -> Tensor:
    """Return r + γ Q'(s', argmax Q(s', ·)), [...].

    Van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461, eq. 4: the online network Q chooses the action, the
    target network Q' evaluates it.

    Args:
        reward: r, [...].
        discount: γ, or 0 after termination, [...].
        next_q_online: Q(s', ·), [..., num_actions].
        next_q_target: Q'(s', ·), [..., num_actions].

    >>> online, target = torch.tensor([[3.0, 2.0]]), torch.tensor([[2.0, 4.0]])
    >>> double_q_target(torch.tensor([1.0]), torch.tensor([0.5]), online, target).tolist()
    [2.0]
    """
    next_action = next_q_online.argmax(-1, keepdim=True)
    return reward + discount * next_q_target.gather(-1, next_action).squeeze(-1)


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, alpha: Tensor | float, log_prob: Tensor) -> Tensor:
    """Return r + γ (Q'(s', a') - α log π(a'|s')), [...].

    Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, eq. 2 and 3.

    Args:
        reward: r, [...].
        discount: γ, or 0 after termination, [...].
        next_q: Q'(s', a') for an action a' sampled from the current policy, [...]; the minimum of the target critics.
        alpha: the temperature α.
        log_prob: log π(a'|s'), [...].

    >>> reward, discount, next_q, log_prob = torch.tensor([[1.0], [0.5], [4.0], [-2.0]])
    >>> soft_target(reward, discount, next_q, 0.5, log_prob).tolist()
    [3.5]
    """
    return reward + discount * (next_q - alpha * log_prob)


def soft_value(q_values: Tensor, log_probs: Tensor, alpha: Tensor | float) -> Tensor:
    """Return Σₐ π(a|s) (Q(s, a) - α log π(a|s)), the soft value of a state with discrete actions, [...].

    Christodoulou 2019, https://arxiv.org/abs/1910.07207, eq. 10. The target is r + γ times this value of s', and the
    loss of the policy its negative value at s.

    Args:
        q_values: Q(s, ·), [..., num_actions]; the minimum of the critics.
        log_probs: log π(·|s), [..., num_actions].
        alpha: the temperature α.

    >>> soft_value(torch.tensor([2.0, 4.0]), torch.tensor([0.5, 0.5]).log(), alpha=0.0).item()
    3.0
    """
    return (log_probs.exp() * (q_values - alpha * log_probs)).sum(-1)


def q_lambda_returns(
    rewards: Tensor,
    max_q: Tensor,
    last_max_q: Tensor,
    ended: Tensor,
    gamma: float,
    lam: float,
    bootstrap: Tensor | float = 0.0,
) -> Tensor:
    """Return Gₜ = rₜ + γ (λ Gₜ₊₁ + (1 - λ) max Q(sₜ₊₁, ·)), [T, B].

    Gallici et al. 2024 (PQN), https://arxiv.org/abs/2407.04811. After the last step of the fragment G is max Q.
    Exploratory actions do not cut the return, as in Peng's Q(λ).

    Args:
        rewards: rₜ, [T, B].
        max_q: max Q(sₜ, ·), [T, B].
        last_max_q: max Q of the observation after the last step, [B].
        ended: whether the episode ends with this step, [T, B].
        gamma: the discount γ.
        lam: the weight λ of later steps.
        bootstrap: γ max Q of the final observation where the episode is truncated, and 0 elsewhere, [T, B].

    >>> column = torch.tensor([[1.0], [1.0]])
    >>> q_lambda_returns(column, 0 * column, torch.tensor([4.0]), column < 0, gamma=0.5, lam=1.0).flatten().tolist()
    [2.5, 3.0]
    """
    next_max_q = torch.cat([max_q[1:], last_max_q[None]])
    discounts, rewards = _discounts(ended, gamma, rewards), rewards + bootstrap
    returns = [last_max_q]  # from the last step to the first
    for t in range(len(rewards) - 1, -1, -1):
        returns.append(rewards[t] + discounts[t] * (lam * returns[-1] + (1 - lam) * next_max_q[t]))
    return torch.stack(returns[:0:-1])


def retrace(
    log_ratios: Tensor,
    rewards: Tensor,
    q_values: Tensor,
    values: Tensor,
    last_value: Tensor,
    ended: Tensor,
    gamma: float,
    *,
    lam: float = 1.0,
    bootstrap: Tensor | float = 0.0,
) -> Tensor:
    """Return targets of Q(sₜ, aₜ) for actions of an older policy, [T, B].

    Munos et al. 2016, https://arxiv.org/abs/1606.02647, eq. 3: Gₜ = rₜ + γ (V(sₜ₊₁) + cₜ₊₁ (Gₜ₊₁ - Q(sₜ₊₁, aₜ₊₁))),
    with V(s) = Σₐ π(a|s) Q(s, a) and cₜ = λ min(1, π/μ).

    Args:
        log_ratios: log π(aₜ|sₜ) - log μ(aₜ|sₜ), [T, B]; π is the current policy, μ the behaviour policy.
        rewards: rₜ, [T, B].
        q_values: Q(sₜ, aₜ), [T, B].
        values: V(sₜ), [T, B].
        last_value: V of the observation after the last step, [B].
        ended: whether the episode ends with this step, [T, B].
        gamma: the discount γ.
        lam: the decay λ of later TD errors.
        bootstrap: γ V of the final observation where the episode is truncated, and 0 elsewhere, [T, B].

    >>> rewards = torch.tensor([[1.0], [1.0]])
    >>> zeros = 0 * rewards
    >>> retrace(zeros, rewards, zeros, zeros, torch.tensor([4.0]), rewards < 0, gamma=0.5).flatten().tolist()
    [2.5, 3.0]
    """
    next_values = torch.cat([values[1:], last_value[None]])
    discounts, rewards = _discounts(ended, gamma, rewards), rewards + bootstrap
    traces = lam * log_ratios.clamp(max=0).exp()  # clamped first: the gradient of an infinite ratio would be NaN
    targets, correction = [], torch.zeros_like(last_value)  # from the last step to the first
    for t in range(len(rewards) - 1, -1, -1):
        targets.append(rewards[t] + discounts[t] * (next_values[t] + correction))
        correction = traces[t] * (targets[-1] - q_values[t])
    return torch.stack(targets[::-1])


def _discounts(ended: Tensor, gamma: float, like: Tensor) -> Tensor:
    """Return γ, or 0 where an episode ends, in the precision of another tensor."""
    return gamma * (~ended).to(like.dtype)


def value_rescaling(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """Return h(x) = sign(x) (√(|x| + 1) - 1) + εx.

    Pohlen et al. 2018, https://arxiv.org/abs/1805.11593, proposition A.2. Q-values of this scale need no clipped
    rewards. It is computed as x / (√(|x| + 1) + 1) + εx, as the difference of the root and 1 has few digits where x is
    small.

    Args:
        x: values, of any shape.
        epsilon: ε, which keeps the inverse Lipschitz continuous.

    >>> value_rescaling(torch.tensor([-3.0, 0.0, 8.0]), epsilon=0.0).tolist()
    [-1.0, 0.0, 2.0]
    """
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


def inverse_value_rescaling(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """Return h⁻¹(x) for the h of `value_rescaling`.

    With w = √(|h⁻¹(x)| + 1) - 1, |x| = h(|h⁻¹(x)|) is the quadratic equation εw² + (1 + 2ε)w = |x|. Its solution is
    w = 2|x| / (1 + 2ε + √((1 + 2ε)² + 4ε|x|)), and then h⁻¹(x) = sign(x) w (w + 2). This equals the formula of Pohlen
    et al. 2018, https://arxiv.org/abs/1805.11593, proposition A.2, whose differences leave few digits where x is small:
    in 32 bits its error is 5 % at 0.001.

    Args:
        x: rescaled values, of any shape.
        epsilon: ε of h.

    >>> inverse_value_rescaling(torch.tensor([-1.0, 0.0, 2.0]), epsilon=0.0).tolist()
    [-3.0, 0.0, 8.0]
    """
    linear = 1 + 2 * epsilon
    root = 2 * x / (linear + (linear**2 + 4 * epsilon * x.abs()).sqrt())  # sign(x) w
    return root * (root.abs() + 2)


def rescaled_target(reward: Tensor, discount: Tensor, next_q: Tensor, epsilon: float = 1e-3) -> Tensor:
    """Return h(r + γ h⁻¹(Q'(s', a'))), [...], for a network whose Q-values are rescaled by h.

    Kapturowski et al. 2019 (R2D2), https://openreview.net/forum?id=r1lyTjAqYX, section 2.3. For double Q-learning, pass
    `inverse_value_rescaling(next_q_target)` to `double_q_target`, and its result to `value_rescaling`.

    Args:
        reward: r, [...].
        discount: γ, or 0 after termination, [...].
        next_q: Q'(s', a') of the next action as the network returns it, [...].
        epsilon: ε of `value_rescaling`.

    >>> rescaled_target(torch.tensor([4.0]), torch.tensor([0.5]), torch.tensor([2.0]), epsilon=0.0).tolist()
    [2.0]
    """
    return value_rescaling(reward + discount * inverse_value_rescaling(next_q, epsilon), epsilon)


def sequence_priorities(errors: Tensor, mask: Tensor, eta: float = 0.9) -> Tensor:
    """Return η max |δₜ| + (1 - η) mean |δₜ| over the trained steps of every sequence, [N].

    Kapturowski et al. 2019 (R2D2), https://openreview.net/forum?id=r1lyTjAqYX, section 2.3. The priority of a sequence
    without trained steps is 0.

    Args:
        errors: TD errors δₜ, [N, L].
        mask: whether a step is trained, [N, L]; the column `mask`, which leaves out burn-in and padding.
        eta: the weight η of the maximum.

    >>> sequence_priorities(torch.tensor([[9.0, -3.0, 1.0]]), torch.tensor([[False, True, True]]), eta=0.5).tolist()
    [2.5]
    """
    magnitudes = errors.abs().masked_fill(~mask, 0.0)
    return eta * magnitudes.amax(-1) + (1 - eta) * magnitudes.sum(-1) / mask.sum(-1).clamp(min=1)
