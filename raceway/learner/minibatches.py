"""Minibatches of rows: of single rows, or of whole segments for recurrent networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from raceway.errors import ConfigError
from raceway.rl import Batch, has_segments, is_replayed, tree_map


def minibatches(rows: Batch, num: int, random: torch.Generator) -> Iterator[Batch]:
    """Yield minibatches of rows, in random order unless they were sampled from replay; one is all rows as they are.

    Args:
        rows: the rows as tensors. If they have segments, these stay whole; see `segment_minibatches`.
        num: the number of minibatches.
        random: the generator of the order.
    """
    if num == 1:
        yield rows
        return
    by_segment = has_segments(rows)  # of which a recurrent network sees all steps together
    total = len(rows["segment"] if by_segment else rows["action"])
    if num > total and not by_segment:
        raise ConfigError(f"a batch of {total} steps cannot be split into {num} minibatches. Use fewer, or more steps.")
    edges = [index * (total // num) + min(index, total % num) for index in range(num + 1)]
    if is_replayed(rows):  # which were sampled independently of each other
        yield from _slices(rows, edges)
        return
    order = torch.randperm(total, generator=random)
    if by_segment:  # whose number depends on how many episodes end
        yield from segment_minibatches(rows, order, min(num, total))
        return
    index = order.to(rows["action"].device)
    # Once, so that minibatches are views. `column[index]` takes seven times as long for images.
    yield from _slices(tree_map(lambda column: column.index_select(0, index), rows), edges)


def _slices(rows: Batch, edges: Sequence[int]) -> Iterator[Batch]:
    """Yield the rows between every two edges."""
    for first, end in pairwise(edges):
        yield tree_map(lambda column, first=first, end=end: column[first:end], rows)


def segment_minibatches(rows: Batch, order: Tensor, num: int) -> Iterator[Batch]:
    """Yield minibatches of whole segments in this order, with about the same number of rows each.

    Args:
        rows: rows of concatenated segments, with the columns `segment` and `state`; see `flatten_steps`.
        order: the order of the segments.
        num: the number of minibatches.
    """
    lengths = rows["segment"][order]
    first_rows = (rows["segment"].cumsum(0) - rows["segment"])[order]
    ends = lengths.cumsum(0)
    edges = torch.searchsorted(ends, torch.arange(1, num) * (ends[-1] / num)) + 1
    for first, end in pairwise([0, *edges.tolist(), len(order)]):
        if first >= end:
            continue
        sizes, chosen = lengths[first:end], order[first:end]
        offsets = torch.arange(int(sizes.sum())) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        index = torch.repeat_interleave(first_rows[first:end], sizes) + offsets
        by_segment = {"segment": sizes, "state": tree_map(lambda part, chosen=chosen: part[chosen], rows["state"])}
        columns = {name: column for name, column in rows.items() if name not in by_segment}
        yield tree_map(lambda column, index=index: column[index], columns) | by_segment
