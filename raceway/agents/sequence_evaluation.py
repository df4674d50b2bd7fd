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
    valid, mask, begins, span = (_transposed(batch[name]) for name in ("valid", "mask", "begins", "span"))
    trained = np.logical_or.accumulate(mask, axis=0) & valid  # all valid steps from the first that is trained
    rows = sequence_segments(begins, trained)
    num, num_segments = len(rows.step), len(rows.lengths)
    shape = (*batch["valid"].shape, policy.distribution.size)
    if not num:
        nothing = torch.zeros(shape, device=batch["valid"].device)
        return nothing, nothing
    own = np.arange(num) + np.repeat(np.arange(num_segments), rows.lengths)  # with one more step after each segment
    after = rows.last_rows + 1 + np.arange(num_segments)

    def with_next(obs: Tensor, next_obs: Tensor) -> Tensor:
        joined = obs.new_empty((num + num_segments, *obs.shape[2:]))
        joined[own], joined[after] = obs[rows.slot, rows.step], next_obs[rows.slot, rows.step][rows.last_rows]
        return joined

    all_obs = tree_map(with_next, batch["obs"], batch["next_obs"])
    states = _states(policy, batch, rows, sequence_segments(begins, valid & ~trained))
    features = run_segments(policy.network, policy.network_obs(all_obs), torch.from_numpy(rows.lengths + 1), states)
    outputs = policy.params_of_features(features, all_obs)
    where = torch.from_numpy(rows.slot), torch.from_numpy(rows.step)
    blank = outputs.new_zeros(shape)
    next_rows = own + span[rows.step, rows.slot]
    return blank.index_put(where, outputs[own]), blank.index_put(where, outputs[next_rows])


def _states(policy: Policy, batch: Batch, rows: Segments, burn_in: Segments) -> State:
    """Return the state at the start of every segment that is trained, [S, ...].

    It is that of a new episode, or the one after the burn-in, or for a sequence without burn-in the stored one.
    """
    stored: State = batch["state"]
    if len(burn_in.lengths):
        with torch.no_grad():
            initial = _segment_states(policy, burn_in, stored)
            obs = policy.network_obs(row_of(batch["obs"], (burn_in.slot, burn_in.step)))
            states = state_after_segments(policy.network, obs, torch.from_numpy(burn_in.lengths), initial)
            slots = burn_in.slot[burn_in.last_rows]
            last = np.flatnonzero(np.diff(slots, append=-1))  # the last segment of each sequence
            index = torch.from_numpy(slots[last])
            stored = {name: part.index_copy(0, index, states[name][last]) for name, part in stored.items()}
    return _segment_states(policy, rows, stored)


def _segment_states(policy: Policy, rows: Segments, state: State) -> State:
    """Return the state at the start of segments, [S, ...], from that of every sequence, [N, ...]."""
    continued = torch.from_numpy(np.flatnonzero(rows.continues))
    slots = rows.slot[rows.first_rows][rows.continues]
    initial = policy.initial_state(len(rows.lengths))
    return {name: part.index_copy(0, continued, state[name][slots]) for name, part in initial.items()}


def _transposed(column: Any) -> Array:
    return column.cpu().numpy().T
