"""Evaluating sequences from replay, [N, L], with a recurrent policy: one pass over the segments of all sequences.

The steps of a sequence before the first that is trained are its burn-in: from the stored state, which earlier weights
have computed, they lead to the state that the current weights have at that step (Kapturowski et al. 2019,
https://openreview.net/forum?id=r1lyTjAqYX). They are evaluated without gradients, in one call of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raceway.agents.networks import State
from raceway.agents.policy import Policy
from raceway.agents.recurrent import run_segments, state_after_segments
from raceway.rl import Batch, Segments, row_of, sequence_segments, tree_map

Array = np.ndarray


def evaluate_sequences(policy: Policy, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the outputs of a recurrent policy for `obs` and for `next_obs`, both [N, L, size].

    They are those of the steps that are trained, and of valid ones after them; others are 0.

    Args:
        policy: the recurrent policy.
        batch: sequences of tensors; see `raceway.rl.sequences`.
    """
    return ArrangedSequences(batch).evaluate(policy)


class ArrangedSequences:
    """Sequences whose steps are arranged as segments, for several policies with the same spaces.

    Args:
        batch: sequences of tensors; see `raceway.rl.sequences`.
    """

    def __init__(self, batch: Batch) -> None:
        valid, mask, begins, span = (_transposed(batch[name]) for name in ("valid", "mask", "begins", "span"))
        trained = np.logical_or.accumulate(mask, axis=0) & valid  # all valid steps from the first that is trained
        self._rows = rows = sequence_segments(begins, trained)
        self._burn_in = burn_in = sequence_segments(begins, valid & ~trained)
        self._state: State = batch["state"]
        self._like, num, num_segments = batch["valid"], len(rows.step), len(rows.lengths)
        # Each segment has one more row, for the observation after it.
        own = np.arange(num) + np.repeat(np.arange(num_segments), rows.lengths)
        after = torch.from_numpy(rows.last_rows + 1 + np.arange(num_segments))
        self._next_rows = torch.from_numpy(own + span[rows.step, rows.slot])
        self._own, self._where = torch.from_numpy(own), (torch.from_numpy(rows.slot), torch.from_numpy(rows.step))
        last = (self._where[0][rows.last_rows], self._where[1][rows.last_rows])

        def with_next(obs: Tensor, next_obs: Tensor) -> Tensor:
            joined = obs.new_empty((num + num_segments, *obs.shape[2:]))
            joined[self._own], joined[after] = obs[self._where], next_obs[last]
            return joined

        self._obs = tree_map(with_next, batch["obs"], batch["next_obs"])
        self._burn_in_obs = row_of(batch["obs"], (torch.from_numpy(burn_in.slot), torch.from_numpy(burn_in.step)))

    def evaluate(self, policy: Policy) -> tuple[Tensor, Tensor]:
        """Return the outputs of a policy for `obs` and for `next_obs`; see `evaluate_sequences`."""
        shape = (*self._like.shape, policy.distribution.size)
        if not len(self._own):
            nothing = torch.zeros(shape, device=self._like.device)
            return nothing, nothing
        lengths = torch.from_numpy(self._rows.lengths + 1)
        features = run_segments(policy.network, policy.network_obs(self._obs), lengths, self._states(policy))
        outputs = policy.params_of_features(features, self._obs)
        blank = outputs.new_zeros(shape)
        return (
            blank.index_put(self._where, outputs[self._own]),
            blank.index_put(self._where, outputs[self._next_rows]),
        )

    def _states(self, policy: Policy) -> State:
        """Return the state at the start of every segment that is trained, [S, ...].

        It is that of a new episode, or the one after the burn-in, or for a sequence without burn-in the stored one.
        """
        stored, burn_in = self._state, self._burn_in
        if len(burn_in.lengths):
            with torch.no_grad():
                initial = _segment_states(policy, burn_in, stored)
                obs, lengths = policy.network_obs(self._burn_in_obs), torch.from_numpy(burn_in.lengths)
                states = state_after_segments(policy.network, obs, lengths, initial)
                slots = burn_in.slot[burn_in.last_rows]
                last = np.flatnonzero(np.diff(slots, append=-1))  # the last segment of each sequence
                index = torch.from_numpy(slots[last])
                stored = {name: part.index_copy(0, index, states[name][last]) for name, part in stored.items()}
        return _segment_states(policy, self._rows, stored)


def _segment_states(policy: Policy, rows: Segments, state: State) -> State:
    """Return the state at the start of segments, [S, ...], from that of every sequence, [N, ...]."""
    continued = torch.from_numpy(np.flatnonzero(rows.continues))
    slots = torch.from_numpy(rows.slot[rows.first_rows][rows.continues])
    initial = policy.initial_state(len(rows.lengths))
    return {name: part.index_copy(0, continued, state[name][slots]) for name, part in initial.items()}


def _transposed(column: Any) -> Array:
    return column.cpu().numpy().T
