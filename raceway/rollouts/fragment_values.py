"""Evaluating fragments with the policy that collected them: log-probabilities, values, bootstrapped rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raceway.agents import Gaussian, Policy, as_tensor
from raceway.rl import Batch, tree_map
from raceway.state import record

Array = np.ndarray

_MAX_SCALED_REWARD = 10.0
EPISODE_COLUMNS = ("episode_return", "episode_length", "episode_lost")
"""Columns of a fragment that hold episodes, not steps."""


class EvaluatedFragment(NamedTuple):
    """A fragment, [T, B], and the values of its observations."""

    batch: Batch
    """With `log_prob` and `ended`. The last reward of a truncated episode includes the bootstrapped value."""
    values: Array
    """V(s) of every step, [T, B]."""
    last_value: Array
    """V(s) of the observations after the last step, [B]."""


def evaluate_fragment(
    policy: Policy, batch: Batch, gamma: float, returns: RunningReturns | None = None, *, with_values: bool = True
) -> EvaluatedFragment:
    """Evaluate a fragment with the policy that collected it.

    Args:
        policy: the policy that collected the fragment.
        batch: the fragment.
        gamma: the discount γ.
        returns: the running returns of earlier fragments, if rewards are divided by the standard deviation of
            discounted returns.
        with_values: whether to compute the values of all observations. Otherwise only those that truncated episodes
            bootstrap from are computed, and none are returned.
    """
    truncated = batch["truncated"] & batch.get("valid", True)
    with torch.inference_mode():
        params, values = _params_and_values(policy, batch, with_values)
        log_prob = policy.distribution.log_prob(params, as_tensor(batch["action"])).detach().numpy()
        last_value = _values(policy, batch["last_obs"]) if with_values else np.empty(0)
        final_values = _values(policy, batch["final_obs"]) if truncated.any() else None
    kept = {name: column for name, column in batch.items() if name not in ("network_outputs", "restarted")}
    ended = batch["terminated"] | truncated
    evaluated = {**kept, "reward": batch["reward"].copy(), "log_prob": log_prob, "ended": ended}
    if returns is not None:
        # The step after an invalid one begins an episode, even if no end was recorded before it.
        boundary = ended | ~batch["valid"] if "valid" in batch else ended
        if "restarted" in batch:
            returns.clear()
        evaluated["running_return"] = returns.accumulate(batch["reward"], boundary, gamma)
        scale = float(policy.rewards.deviation)  # type: ignore[union-attr]
        evaluated["reward"] = np.clip(evaluated["reward"] / scale, -_MAX_SCALED_REWARD, _MAX_SCALED_REWARD)
    if final_values is not None:
        # A step can be both terminated and truncated; then there is nothing to bootstrap.
        evaluated["reward"][truncated] += gamma * final_values * ~batch["terminated"][truncated]
    return EvaluatedFragment(evaluated, values.numpy(), last_value)


def _values(policy: Policy, obs: Any) -> Array:
    return policy.values(tree_map(as_tensor, obs)).detach().numpy()


def _params_and_values(policy: Policy, batch: Batch, with_values: bool) -> tuple[Tensor, Tensor]:
    """Return the distribution's parameters and the values; network outputs kept from the rollout are reused."""
    obs = tree_map(as_tensor, batch["obs"])
    if "network_outputs" not in batch:
        return policy.evaluate(obs) if with_values else (policy(obs, {})[0], torch.empty(0))
    params = as_tensor(batch["network_outputs"])
    if isinstance(policy.distribution, Gaussian):
        params = torch.cat([params, policy.network[-1].log_std.expand_as(params)], -1)  # type: ignore[index]
    return params, policy.values(obs) if with_values else torch.empty(0)


@record(formerly=("RunningReturns",))
class RunningReturns(dict[str, Any]):
    """The discounted return of every slot so far, across fragments. A dict, so that it is saved as data."""

    def accumulate(self, rewards: Array, ended: Array, gamma: float) -> Array:
        """Continue with the rewards of a fragment, and return the discounted return after every step, [T, B]."""
        returns = np.empty_like(rewards)
        sums = self.get("sums", np.zeros(rewards.shape[1:], rewards.dtype))
        for row, (reward, over) in enumerate(zip(rewards, ended, strict=True)):
            returns[row] = sums * gamma + reward
            sums = returns[row] * ~over
        self["sums"] = sums
        return returns


def flatten_steps(batch: Batch, names: Sequence[str]) -> Batch:
    """Return columns of a fragment as rows of its valid steps, [N], with the columns of episodes that ended."""
    keep = batch["valid"].ravel() if "valid" in batch else slice(None)

    def flatten(column: Array) -> Array:
        return column.reshape(-1, *column.shape[2:])[keep]

    episodes = {name: batch[name] for name in EPISODE_COLUMNS if name in batch}
    return {name: tree_map(flatten, batch[name]) for name in names if name in batch} | episodes
