"""Small datasets whose rewards are the numbers of their rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.datasets import Dataset, DatasetWriter, open_dataset
from raceway.rl import Batch
from raceway.rl.spaces import empty

POINT = spaces.Box(-1, 1, (2,))
PARTS = spaces.Dict({"a/b": spaces.Box(0, 255, (2, 3), np.uint8), "c": spaces.Tuple([spaces.Discrete(4, start=2)])})
TURNS = spaces.MultiDiscrete([3, 2])


def sample(space: spaces.Space, num: int, seed: int) -> Any:
    """Return sampled values of a space as arrays, [num, ...]."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        return {str(key): sample(part, num, seed + i) for i, (key, part) in enumerate(parts.items())}
    space.seed(seed)
    values = empty(space, (num,))
    for row in range(num):
        values[row] = space.sample()
    return values


def episodes(
    lengths: Sequence[int],
    first_row: int = 0,
    observation_space: spaces.Space = POINT,
    action_space: spaces.Space = TURNS,
) -> Batch:
    """Return a batch of whole episodes; a negative length is that of a truncated one."""
    sizes = np.abs(lengths)
    num, ends = int(sizes.sum()), np.cumsum(sizes) - 1
    ended = np.zeros((2, num), bool)
    ended[(np.asarray(lengths) < 0).astype(int), ends] = True
    return {
        "obs": sample(observation_space, num, 10 + first_row),
        "action": sample(action_space, num, 20 + first_row),
        "reward": np.arange(first_row, first_row + num, dtype=np.float32),
        "terminated": ended[0],
        "truncated": ended[1],
        "final_obs": sample(observation_space, len(lengths), 30 + first_row),
        "length": sizes,
    }


def write(path: Path, *batches: Batch, observation_space: Any = POINT, action_space: Any = TURNS) -> Dataset:
    """Write a dataset with one part for each batch."""
    with DatasetWriter(path, observation_space, action_space, {"env": "Toy-v0"}, part_bytes=1) as writer:
        for batch in batches:
            writer.add(batch)
    return open_dataset(path)
