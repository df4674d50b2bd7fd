"""Segments: the parts of rollout fragments, [T, B], that lie within one episode each, for recurrent networks.

A recurrent network runs over every segment from the state at its start. As rows, segments are concatenated: one slot
after the other, each in the order of its steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Segments(NamedTuple):
    """The segments of a fragment."""

    step: Array
    """The step t of every row, [N]."""
    slot: Array
    """The slot b of every row, [N]."""
    lengths: Array
    """The number of rows of every segment, [S]."""
    continues: Array
    """Whether a segment continues the episode that was open before the fragment, [S]."""

    @property
    def first_rows(self) -> Array:
        """The first row of every segment, [S]."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def last_rows(self) -> Array:
        """The last row of every segment, [S]."""
        return np.cumsum(self.lengths) - 1


def find_segments(ended: Array, valid: Array | None = None, padding: Array | None = None) -> Segments:
    """Return the segments of the valid steps of a fragment.

    Args:
        ended: whether the episode ends with a step, [T, B].
        valid: whether a step is valid, [T, B]; all are by default. The step after an invalid one begins an episode.
        padding: which of the invalid steps are padding in front of a slot's steps, [T, B], and no end of an episode.

    >>> ended = np.array([[False, False], [True, False], [False, False]])
    >>> segments = find_segments(ended)
    >>> segments.slot.tolist(), segments.step.tolist(), segments.lengths.tolist(), segments.continues.tolist()
    ([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], [2, 1, 3], [True, False, True])
    """
    steps = np.ones_like(ended) if valid is None else valid
    begins = np.ones_like(ended)
    begins[1:] = ended[:-1] | ~steps[:-1]
    slot, step = np.nonzero(steps.T)
    first = np.flatnonzero(begins[step, slot])
    lengths = np.diff(np.append(first, len(step)))
    continues = np.zeros_like(ended)
    continues[0] = True
    if padding is not None:
        continues[1:] |= padding[:-1]
    return Segments(step, slot, lengths, continues[step, slot][first])


def sequence_segments(begins: Array, valid: Array) -> Segments:
    """Return the segments of the valid steps of sequences.

    Args:
        begins: whether a step is the first of its episode, [L, N]. A sequence whose first step is not marked continues
            from the state before it.
        valid: whether a step is valid, [L, N].

    >>> begins = np.array([[False, False], [False, True], [True, False]])
    >>> segments = sequence_segments(begins, np.array([[True, False], [True, True], [True, True]]))
    >>> segments.slot.tolist(), segments.step.tolist(), segments.lengths.tolist(), segments.continues.tolist()
    ([0, 0, 0, 1, 1], [0, 1, 2, 1, 2], [2, 1, 2], [True, False, False])
    """
    slot, step = np.nonzero(valid.T)
    begin = begins[step, slot]
    first = np.flatnonzero(begin | (np.diff(slot, prepend=-1) != 0))
    return Segments(step, slot, np.diff(np.append(first, len(step))), ~begin[first])
