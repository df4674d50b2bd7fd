"""Operators that prepare batches for the learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from raceway.flow import injected
from raceway.rl import (
    Batch,
    Episodes,
    Fragment,
    Layout,
    Rows,
    columns_with,
    concat,
    discounted_returns,
    generalised_advantages,
    num_steps,
    standardise_episodes,
    tree_map,
)
from raceway.rl.episode_info import with_episode_info
from raceway.rollouts.fragment_values import EPISODE_COLUMNS, RunningReturns, evaluate_fragment, flatten_steps
from raceway.state import Stateful

_ROW_COLUMNS = ("obs", "action", "log_prob", "advantage", "value_target", "running_return")
_FRAGMENT_COLUMNS = ("obs", "action", "reward", "bootstrap", "log_prob", "ended", "running_return", "valid", "last_obs",
                     "state", "num_turns")  # fmt: skip
_STEP_COLUMNS = columns_with(Layout.FRAGMENT, "[T")


class AddReturns(Stateful):
    """Add a column `return`: the discounted return from each step, standardised within its episode."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, batch: Episodes) -> Episodes:
        """Return the batch with the column."""
        returns = discounted_returns(batch["reward"], batch["length"], self.gamma)
        return Episodes({**batch, "return": standardise_episodes(returns, batch["length"])})


class ConcatBatches(Stateful):
    """Concatenate the batches of as many rounds as are needed for `min_steps` steps. Use with `combine`."""

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, min_steps: int = 1) -> None:
        self.min_steps, self.held = min_steps, list[Batch]()

    def __call__(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return one batch, in the order of the shards, if there are enough steps; otherwise none."""
        batches, self.held = [*self.held, *batches], []
        if sum(map(num_steps, batches)) >= self.min_steps:
            return [concat(batches)]
        self.held = batches
        return []


class StandardizeFields(Stateful):
    """Standardise columns to mean 0 and standard deviation 1 within each batch."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with the standardised columns."""
        columns = {name: (batch[name] - batch[name].mean()) / (batch[name].std() + 1e-8) for name in self.names}
        return {**batch, **columns}


class AddLogProbs(Stateful):
    """Add to fragments the `log_prob` of their actions under the policy that collected them. Runs on shards.

    A truncated episode counts as `ended`, and what it bootstraps from is the column `bootstrap`. With `scale_rewards`,
    rewards are divided by the standard deviation of discounted returns. See `evaluate_fragment`.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("running",)

    def __init__(self, gamma: float, scale_rewards: bool = False) -> None:
        self.gamma, self.running = gamma, RunningReturns() if scale_rewards else None

    def __call__(self, batch: Fragment, *, actor: Any = injected) -> Fragment:
        """Return the fragment with the columns."""
        return evaluate_fragment(actor.agent, batch, self.gamma, self.running, with_values=False).batch


class AddAdvantages(Stateful):
    """Add `advantage` and `value_target` to fragments, and flatten them to rows of steps. Runs on shards.

    Truncated episodes and `scale_rewards` are as in `AddLogProbs`.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("running",)

    def __init__(self, gamma: float, lam: float = 1.0, scale_rewards: bool = False) -> None:
        self.gamma, self.lam, self.running = gamma, lam, RunningReturns() if scale_rewards else None

    def __call__(self, batch: Fragment, *, actor: Any = injected) -> Rows:
        """Return the rows, [N]."""
        batch, values, last = evaluate_fragment(actor.agent, batch, self.gamma, self.running)
        batch["advantage"] = generalised_advantages(
            batch["reward"], values, last, batch["ended"], self.gamma, self.lam, batch["bootstrap"]
        )
        batch["value_target"] = batch["advantage"] + values
        return flatten_steps(actor.agent, batch, _ROW_COLUMNS)


class ConcatFragments(Stateful):
    """Concatenate fragments along the axis of environments, [T, B], until they have `min_steps`. Use with `combine`.

    The size of the batches that a learner gets is then a setting, and does not depend on the number of shards.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, min_steps: int = 1) -> None:
        self.min_steps, self.held = min_steps, list[Fragment]()

    def __call__(self, batch: Fragment) -> list[Fragment]:
        """Return one fragment, if there are enough steps; otherwise none."""
        batches, self.held = [*self.held, batch], []
        if sum(map(num_steps, batches)) >= self.min_steps:
            return [concat_fragments(batches)]
        self.held = batches
        return []


def concat_fragments(fragments: Sequence[Fragment]) -> Fragment:
    """Return one fragment. If one has `valid`, all steps of those without it are valid."""
    batches: Sequence[Batch] = fragments
    if any("valid" in batch for batch in batches):
        batches = [{"valid": np.ones(batch["ended"].shape, bool), **batch} for batch in batches]
    batches, fragment = with_episode_info(batches), Fragment({})
    for name in (*_FRAGMENT_COLUMNS, *EPISODE_COLUMNS):
        if name in batches[0]:
            axis = 1 if name in _STEP_COLUMNS else 0
            columns = [batch[name] for batch in batches]
            fragment[name] = tree_map(lambda *parts, axis=axis: np.concatenate(parts, axis), *columns)
    return fragment
