"""The joint layout: the steps of all agents of a policy side by side, [T, E, A], for losses that look at all of them.

A fragment of parallel environments has a slot for every agent of every environment, ordered by environment and then by
agent, so the same row is the same time for all agents of an environment.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.rl.batch import Batch, Layout, columns_with, tree_map
from raceway.rl.turns import is_padded

_BY_STEP = columns_with(Layout.FRAGMENT, "[T, B")
_BY_SLOT = columns_with(Layout.FRAGMENT, "[B")


def joint(batch: Batch, num_agents: int) -> Batch:
    """Return a fragment, [T, E · A], in the joint layout.

    Args:
        batch: a fragment of parallel environments: the steps of one policy's agents.
        num_agents: the number A of agents with this policy, in each environment.

    Returns:
        Columns of steps as [T, E, A, ...], and those of slots, such as `last_obs` and `agent`, as [E, A, ...]. `valid`
        is always there: false where an agent is absent. `global_state`, [T, E, ...], belongs to all agents of an
        environment and stays as it is; so do the columns of ended episodes, and `final_obs`, which keeps the order of
        `np.nonzero(truncated)`.

    >>> batch = {"reward": np.arange(4).reshape(1, 4), "last_obs": np.zeros((4, 2))}
    >>> {name: column.shape for name, column in joint(batch, num_agents=2).items()}
    {'reward': (1, 2, 2), 'last_obs': (2, 2, 2), 'valid': (1, 2, 2)}
    """
    if is_padded(batch):
        raise ValueError(
            "a fragment of a turn-based environment has no joint layout: its agents act at different times. Use a "
            "parallel environment."
        )
    num_slots = batch["reward"].shape[1]
    if num_agents < 1 or num_slots % num_agents:
        raise ValueError(f"{num_slots} slots are not a multiple of {num_agents} agents. Give the number of agents.")
    shape = (num_slots // num_agents, num_agents)

    def split(column: Any, axis: int) -> Any:
        return tree_map(lambda part: part.reshape(*part.shape[:axis], *shape, *part.shape[axis + 1 :]), column)

    columns = {"valid": np.ones(batch["reward"].shape, bool), **batch}
    by_step = {name: split(columns[name], 1) for name in _BY_STEP if name in columns}
    by_slot = {name: split(columns[name], 0) for name in _BY_SLOT if name in columns}
    order = [*batch, "valid"]
    return {name: {**columns, **by_step, **by_slot}[name] for name in dict.fromkeys(order)}
