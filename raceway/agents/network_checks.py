"""Trying a network before it is trained: what it returns for a few observations, and whether rows are independent.

Networks are called with one row per observation, [N, ...], for any N. One that fails on such a batch, mixes its rows,
or has a memory that nobody resets would otherwise fail late, or learn something else than it was made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.modes import in_eval_mode
from raceway.errors import INTERRUPTS, ConfigError
from raceway.rl import empty, tree_map

NUM_ROWS = 3
"""Observations that a network is tried on."""
GUIDE = "docs/custom-networks.md"
"""The page about networks of a user's own."""


def example_rows(space: spaces.Space, num: int = NUM_ROWS) -> Any:
    """Return some observations of a space that differ from one another, as a tree of tensors, [N, ...]."""
    random = np.random.default_rng(0)

    def fill(part: spaces.Space, arrays: Any) -> None:
        if isinstance(part, spaces.Dict):
            for key, inner in part.spaces.items():
                fill(inner, arrays[key])
        elif isinstance(part, spaces.Tuple):
            for index, inner in enumerate(part.spaces):
                fill(inner, arrays[str(index)])
        elif isinstance(part, (spaces.Discrete, spaces.MultiDiscrete)):
            count = part.n if isinstance(part, spaces.Discrete) else part.nvec
            arrays += (random.random(arrays.shape) * count).astype(arrays.dtype)
        elif isinstance(part, spaces.Box) and arrays.dtype.kind != "b":
            low, high = part.low.astype(float), part.high.astype(float)
            whole = arrays.dtype.kind in "iu"
            spread = random.integers(0, 256, arrays.shape) if whole else random.uniform(-1, 1, arrays.shape)
            arrays[...] = np.clip(np.clip(0, low, high) + spread, low, high).astype(arrays.dtype)
        else:
            arrays[...] = random.integers(0, 2, arrays.shape).astype(arrays.dtype)

    rows = empty(space, (num,))
    fill(space, rows)
    return tree_map(torch.from_numpy, rows)


def try_network(
    part: str, network: nn.Module, call: Callable[[Any], Any], rows: Any, *, built_in: bool = False
) -> tuple[int, ...] | str:
    """Run a network on a few rows, and return the shape of its output, or the name of a type that is no tensor.

    Args:
        part: the part of the agent that it is, for errors.
        network: the network.
        call: runs it on a tree of rows.
        rows: the rows, a tree of tensors with `NUM_ROWS` rows each.
        built_in: whether it is one of Raceway's own, whose rows are independent.

    Raises:
        ConfigError: it fails, mixes rows, or remembers earlier calls.
    """
    with torch.no_grad(), in_eval_mode(network):
        try:
            output = call(rows)
            if not isinstance(output, Tensor):
                return f"a {type(output).__name__}"
            if not built_in and output.ndim == 2 and len(output) == NUM_ROWS:
                _check_rows(part, call, rows)
        except (*INTERRUPTS, ConfigError):
            raise
        except Exception as error:
            shapes: list[str] = []
            tree_map(lambda column: shapes.append(str(tuple(column.shape))), rows)
            raise ConfigError(
                f"the network of the part {part!r} failed on {NUM_ROWS} rows of shape {', '.join(shapes)}: {error}"
            ) from error
    return tuple(output.shape)


def _check_rows(part: str, call: Callable[[Any], Any], rows: Any) -> None:
    """Refuse a network whose outputs depend on earlier calls, or on other rows. Randomness is allowed."""
    with torch.random.fork_rng(devices=[]):

        def run(seed: int, batch: Any) -> Tensor:
            torch.manual_seed(seed)
            return call(batch)

        first, again, other = run(0, rows), run(0, rows), run(1, rows)
        if not torch.equal(first.isnan(), again.isnan()) or not _close(first, again):
            raise ConfigError(
                f"the network of the part {part!r} returned something else when it was called again with the same "
                f"rows: it has a memory that no episode resets. Give it initial_state(num); see {GUIDE}."
            )
        if not _close(first, other):
            return  # it is random: its rows cannot be compared
        single = [run(0, tree_map(lambda column, row=row: column[row : row + 1], rows)) for row in range(NUM_ROWS)]
    if not _close(first, torch.cat(single)):
        raise ConfigError(
            f"the network of the part {part!r} mixes its rows: for {NUM_ROWS} observations at once it returned other "
            f"outputs than for each alone. It is called with [N, ...], one row per observation, in no order; a "
            f"recurrent network needs initial_state(num). See {GUIDE}."
        )


def _close(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, rtol=1e-3, atol=1e-4, equal_nan=True)
