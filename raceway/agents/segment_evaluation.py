"""Evaluating rollout fragments, [T, B], with a recurrent actor-critic: one pass over the segments of a fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raceway.agents.networks import State
from raceway.agents.policy import Policy, as_tensor
from raceway.agents.recurrent import run_segments
from raceway.rl import Batch, Segments, find_segments, row_of, tree_map
from raceway.rl.turns import padding_of

if TYPE_CHECKING:
    from raceway.agents.agent import ActorCritic


class EvaluatedSegments(NamedTuple):
    """The segments of a fragment, and what the networks computed for them."""

    rows: Segments
    params: Tensor
    """Parameters of the distribution, [N, size]."""
    values: Tensor
    """V(s) of every row, [N]."""
    next_values: Tensor
    """V(s) of the observation after every segment, [S]; of no meaning after termination."""


def fragment_segments(batch: Batch) -> Segments:
    """Return the segments of a fragment of arrays or tensors."""
    names = [name for name in ("ended", "valid", "reward", "num_turns") if name in batch]
    columns: Batch = {name: as_tensor(batch[name]).cpu().numpy() for name in names}
    return find_segments(columns["ended"].astype(bool), columns.get("valid"), padding_of(columns))


def segment_states(initial: State, rows: Segments, state: Any) -> State:
    """Return the recurrent state at the start of every segment, [S, ...].

    Args:
        initial: the state at the start of as many episodes.
        rows: the segments.
        state: the state at the start of the fragment, [B, ...], for segments that continue an episode.
    """
    continued = torch.from_numpy(np.flatnonzero(rows.continues))
    slots = torch.from_numpy(rows.slot[rows.first_rows][rows.continues])
    return {name: part.index_copy(0, continued, as_tensor(state[name])[slots]) for name, part in initial.items()}


def evaluate_segments(agent: ActorCritic, batch: Batch) -> EvaluatedSegments:
    """Evaluate the segments of a fragment, each with the observation after it as one more step.

    Args:
        agent: a recurrent actor-critic.
        batch: a fragment with `obs`, `ended`, `last_obs`, `state`, optionally `valid`; and `truncated` with
            `final_obs`, unless their values are in the column `bootstrap` already.
    """
    rows = fragment_segments(batch)
    num, num_segments = len(rows.step), len(rows.lengths)
    segment = np.repeat(np.arange(num_segments), rows.lengths)
    own = torch.from_numpy(np.arange(num) + segment)  # where the rows are, with one more step after each segment
    after = torch.from_numpy(rows.last_rows + 1 + np.arange(num_segments))
    step, slot = torch.from_numpy(rows.step), torch.from_numpy(rows.slot)

    def with_next(obs: Tensor, next_obs: Tensor) -> Tensor:
        joined = obs.new_empty((num + num_segments, *obs.shape[2:]))
        joined[own], joined[after] = obs[step, slot], next_obs
        return joined

    obs = tree_map(as_tensor, batch["obs"])
    all_obs = tree_map(with_next, obs, _next_obs(batch, obs, rows))
    states = segment_states(agent.actor.initial_state(num_segments), rows, batch["state"])
    lengths = torch.from_numpy(rows.lengths + 1)
    features = run_segments(agent.actor.network, agent.actor.network_obs(all_obs), lengths, states)
    values = agent.values_of_features(features, all_obs)
    params = agent.actor.params_of_features(features[own], tree_map(lambda part: part[own], all_obs))
    return EvaluatedSegments(rows, params, values[own], values[after])


def segment_params(policy: Policy, batch: Batch) -> Tensor:
    """Return the parameters of the distribution of a recurrent policy for every step of a fragment, [T, B, size].

    Those of invalid steps are 0.
    """
    rows = fragment_segments(batch)
    where, lengths = (torch.from_numpy(rows.step), torch.from_numpy(rows.slot)), torch.from_numpy(rows.lengths)
    obs = row_of(tree_map(as_tensor, batch["obs"]), where)
    states = segment_states(policy.initial_state(len(rows.lengths)), rows, batch["state"])
    params = policy.params_of_features(run_segments(policy.network, policy.network_obs(obs), lengths, states), obs)
    return params.new_zeros(*batch["ended"].shape, params.shape[-1]).index_put(where, params)


def _next_obs(batch: Batch, obs: Any, rows: Segments) -> Any:
    """Return the observation after the last row of every segment, [S, ...]."""
    step, slot = rows.step[rows.last_rows], rows.slot[rows.last_rows]
    at_end = step == len(batch["ended"]) - 1
    truncated = np.zeros(len(step), bool)
    index = np.empty(0, np.int64)
    if "truncated" in batch:
        cut = batch["truncated"] & batch.get("valid", True)
        truncated = cut[step, slot]
        index = (np.cumsum(cut).reshape(cut.shape) - 1)[step, slot][truncated]  # in the order of `final_obs`

    def choose(part: Tensor, last: Any, final: Any) -> Tensor:
        result = part[torch.from_numpy(step), torch.from_numpy(slot)].clone()
        result[torch.from_numpy(at_end)] = as_tensor(last)[torch.from_numpy(slot[at_end])]
        if truncated.any():
            result[torch.from_numpy(truncated)] = as_tensor(final)[torch.from_numpy(index)]
        return result

    final_obs = batch["final_obs"] if truncated.any() else batch["last_obs"]
    return tree_map(choose, obs, batch["last_obs"], final_obs)
