"""What a policy says of fragments that it has played: how likely its actions were, and what it expected."""

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

_MOST = 10.0  # how far from 0 a scaled reward can be
OF_EPISODES = ("episode_return", "episode_length", "episode_lost")
"""Columns of a fragment that are not of its steps."""


class Judged(NamedTuple):
    """A fragment, [T, B], and the values of what was seen in it."""

    batch: Batch
    """With `log_prob` and `ended`: what an episode that was cut short would have brought is in its last reward."""
    values: Array
    """V(s) of every step, [T, B]."""
    last_value: Array
    """V of what is seen after the last one, [B]."""


def judged(
    policy: Policy, batch: Batch, gamma: float, returns: RunningReturns | None = None, *, with_values: bool = True
) -> Judged:
    """Return what a policy says of a fragment.

    Args:
        policy: the one that played it.
        batch: the fragment.
        gamma: the discount γ.
        returns: if rewards are to be divided by the spread of discounted returns: those of the fragments before.
        with_values: whether values are wanted, of other observations than the last of episodes that were cut short;
            without it, there are none to return.
    """
    cut = batch["truncated"] & batch.get("valid", True)
    with torch.inference_mode():
        params, values = _evaluated(policy, batch, with_values)
        log_prob = policy.distribution.log_prob(params, as_tensor(batch["action"])).detach().numpy()
        last_value = _values(policy, batch["last_obs"]) if with_values else np.empty(0)
        beyond = _values(policy, batch["final_obs"]) if cut.any() else None
    kept = {name: column for name, column in batch.items() if name not in ("given", "anew")}
    made = {**kept, "reward": batch["reward"].copy(), "log_prob": log_prob, "ended": batch["terminated"] | cut}
    if returns is not None:
        # A step that does not count is followed by the first of an episode, also where none was seen to end before.
        anew = made["ended"] | ~batch["valid"] if "valid" in batch else made["ended"]
        if "anew" in batch:
            returns.clear()
        made["running_return"] = returns.after(batch["reward"], anew, gamma)
        scale = float(policy.rewards.deviation)  # type: ignore[union-attr]
        made["reward"] = np.clip(made["reward"] / scale, -_MOST, _MOST)
    if beyond is not None:
        made["reward"][cut] += gamma * beyond * ~batch["terminated"][cut]  # one can be both
    return Judged(made, values.numpy(), last_value)


def _values(policy: Policy, obs: Any) -> Array:
    return policy.values(tree_map(as_tensor, obs)).detach().numpy()


def _evaluated(policy: Policy, batch: Batch, with_values: bool) -> tuple[Tensor, Tensor]:
    """Return the parameters of the distribution and the values; what was worked out for playing is not again."""
    obs = tree_map(as_tensor, batch["obs"])
    if "given" not in batch:
        return policy.evaluate(obs) if with_values else (policy(obs, {})[0], torch.empty(0))
    params = as_tensor(batch["given"])
    if isinstance(policy.distribution, Gaussian):
        params = torch.cat([params, policy.network[-1].log_std.expand_as(params)], -1)  # type: ignore[index]
    return params, policy.values(obs) if with_values else torch.empty(0)


@record(formerly=("RunningReturns",))
class RunningReturns(dict[str, Any]):
    """The discounted return of every slot so far, from fragment to fragment. A dict, so that it is kept as data."""

    def after(self, rewards: Array, ended: Array, gamma: float) -> Array:
        """Return it after every step, [T, B]."""
        found = np.empty_like(rewards)
        sums = self.get("sums", np.zeros(rewards.shape[1:], rewards.dtype))
        for now, (reward, over) in enumerate(zip(rewards, ended, strict=True)):
            found[now] = sums * gamma + reward
            sums = found[now] * ~over
        self["sums"] = sums
        return found


def rows_of_steps(batch: Batch, names: Sequence[str]) -> Batch:
    """Return columns of a fragment as rows of the steps that count, [N], with the figures of episodes that ended."""
    keep = batch["valid"].ravel() if "valid" in batch else slice(None)

    def rows(column: Array) -> Array:
        return column.reshape(-1, *column.shape[2:])[keep]

    of_episodes = {name: batch[name] for name in OF_EPISODES if name in batch}
    return {name: tree_map(rows, batch[name]) for name in names if name in batch} | of_episodes
