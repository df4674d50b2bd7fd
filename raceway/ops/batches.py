"""What is done to batches on their way to the learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raceway.flow import injected
from raceway.rl import (
    Batch,
    concat,
    discounted_returns,
    generalised_advantages,
    num_steps,
    standardise_episodes,
    tree_map,
)
from raceway.rollouts.fragments import OF_EPISODES, RunningReturns, judged, rows_of_steps

_OF_STEPS = ("obs", "action", "reward", "log_prob", "ended", "running_return")


class AddReturns:
    """Adds a column `return`: what followed each step, discounted, and standardised within its episode."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with it."""
        returns = discounted_returns(batch["reward"], batch["length"], self.gamma)
        return {**batch, "return": standardise_episodes(returns, batch["length"])}


class ConcatBatches:
    """Makes one batch of a round, or of as many rounds as it takes to have so many steps. For `combine`."""

    def __init__(self, min_steps: int = 1) -> None:
        self.min_steps, self.held = min_steps, list[Batch]()

    def __call__(self, batches: Sequence[Batch]) -> list[Batch]:
        """Put them behind one another, in the order of the shards, if there are enough."""
        batches, self.held = [*self.held, *batches], []
        if sum(map(num_steps, batches)) >= self.min_steps:
            return [concat(batches)]
        self.held = batches
        return []


class StandardizeFields:
    """Gives columns a mean of 0 and a deviation of 1 within each batch."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with them."""
        made = {name: (batch[name] - batch[name].mean()) / (batch[name].std() + 1e-8) for name in self.names}
        return {**batch, **made}


class AddLogProbs:
    """Adds to fragments what the policy that played them knows: `log_prob` of its actions. On shards.

    What an episode that was cut short would have brought is put into its last reward, so that it is one that `ended`.
    With `scale_rewards` they are divided by the spread of discounted returns. See `judged`.
    """

    def __init__(self, gamma: float, scale_rewards: bool = False) -> None:
        self.gamma, self.running = gamma, RunningReturns() if scale_rewards else None

    def __call__(self, batch: Batch, *, actor: Any = injected) -> Batch:
        """Return the fragment with it."""
        return judged(actor.policy, batch, self.gamma, self.running, with_values=False).batch


class AddAdvantages:
    """Adds `advantage` and `value_target` to fragments, and makes rows of their steps. On shards; see `judged`."""

    def __init__(self, gamma: float, lam: float = 1.0, scale_rewards: bool = False) -> None:
        self.gamma, self.lam, self.running = gamma, lam, RunningReturns() if scale_rewards else None

    def __call__(self, batch: Batch, *, actor: Any = injected) -> Batch:
        """Return the rows, [N]."""
        made, values, last = judged(actor.policy, batch, self.gamma, self.running)
        made["advantage"] = generalised_advantages(made["reward"], values, last, made["ended"], self.gamma, self.lam)
        made["value_target"] = made["advantage"] + values
        return rows_of_steps(made, ("obs", "action", "log_prob", "advantage", "value_target", "running_return"))


class ConcatFragments:
    """Makes one fragment of several: environments beside one another, [T, B]."""

    def __call__(self, batches: Sequence[Batch]) -> Batch:
        """Return it, without what only single fragments have. Where one says which steps count, in others all do."""
        if any("valid" in batch for batch in batches):
            batches = [{"valid": np.ones(batch["ended"].shape, bool), **batch} for batch in batches]
        found: Batch = {}
        for name in (*_OF_STEPS, "valid", "last_obs", *OF_EPISODES):
            if name in batches[0]:
                axis = 1 if name in (*_OF_STEPS, "valid") else 0
                columns = [batch[name] for batch in batches]
                found[name] = tree_map(lambda *parts, axis=axis: np.concatenate(parts, axis), *columns)
        return found
