"""Evaluating fragments with the policy that collected them: log-probabilities, values, bootstrapped values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raceway.agents import ActorCritic, Gaussian, as_tensor
from raceway.agents.modes import acting_mode
from raceway.agents.segment_evaluation import evaluate_segments, fragment_segments, segment_states
from raceway.autograd.layers import run_layers
from raceway.rl import Batch, Fragment, Rows, row_of, tree_map
from raceway.rl.episode_info import EPISODE_INFO
from raceway.rl.turns import padding_of
from raceway.state import record

Array = np.ndarray

_MAX_SCALED_REWARD = 10.0
_ACTING_COLUMNS = ("network_outputs", "features", "restarted")  # of a fragment as it was collected
EPISODE_COLUMNS = ("episode_return", "episode_length", "episode_lost", EPISODE_INFO)
"""Columns of a fragment that hold episodes, not steps."""


class EvaluatedFragment(NamedTuple):
    """A fragment, [T, B], and the values of its observations."""

    batch: Fragment
    """With `log_prob`, `ended`, and `bootstrap`: γ V(s) of the final observation, where an episode was truncated."""
    values: Array
    """V(s) of every step, [T, B]."""
    last_value: Array
    """V(s) of the observations after the last step, [B]."""


def evaluate_fragment(
    agent: ActorCritic,
    batch: Fragment,
    gamma: float,
    returns: RunningReturns | None = None,
    *,
    with_values: bool = True,
) -> EvaluatedFragment:
    """Evaluate a fragment with the policy that collected it.

    Args:
        agent: the agent whose policy collected the fragment.
        batch: the fragment.
        gamma: the discount γ.
        returns: the running returns of earlier fragments, if rewards are divided by the standard deviation of
            discounted returns.
        with_values: whether to compute the values of all observations. Otherwise only those that truncated episodes
            bootstrap from are computed, and none are returned.
    """
    truncated = batch["truncated"] & batch.get("valid", True)
    ended = batch["terminated"] | truncated
    with torch.inference_mode(), acting_mode(agent):
        if agent.actor.recurrent:
            log_prob, values, last_value, final_values = _evaluate_recurrent(
                agent, {**batch, "ended": ended}, truncated
            )
        else:
            params, all_values = _params_and_values(agent, batch, with_values)
            log_prob = agent.actor.distribution.log_prob(params, as_tensor(batch["action"])).detach().numpy()
            values = all_values.numpy()
            last_value = _values(agent, batch["last_obs"]) if with_values else np.empty(0)
            final_values = _values(agent, batch["final_obs"]) if truncated.any() else None
    kept = {name: column for name, column in batch.items() if name not in _ACTING_COLUMNS}
    bootstrap = np.zeros_like(batch["reward"])
    if final_values is not None:
        # A step can be both terminated and truncated; then there is nothing to bootstrap.
        bootstrap[truncated] = gamma * final_values * ~batch["terminated"][truncated]
    evaluated = {**kept, "bootstrap": bootstrap, "log_prob": log_prob, "ended": ended}
    if returns is not None:
        # The step after an invalid one begins an episode, even if no end was recorded before it.
        boundary = ended | ~batch.get("valid", np.True_)
        if "restarted" in batch:
            returns.clear()
        evaluated["running_return"] = returns.accumulate(batch["reward"], boundary, gamma, padding_of(batch))
        scale = float(agent.rewards.deviation)
        evaluated["reward"] = np.clip(batch["reward"] / scale, -_MAX_SCALED_REWARD, _MAX_SCALED_REWARD)
    return EvaluatedFragment(Fragment(evaluated), values, last_value)


def _evaluate_recurrent(agent: ActorCritic, batch: Batch, truncated: Array) -> tuple[Array, Array, Array, Array | None]:
    """Return log-probabilities and values, [T, B], V(s) after the fragment, [B], and of the final observations."""
    rows, params, values, next_values = evaluate_segments(agent, batch)
    step, slot = rows.step, rows.slot
    columns = np.zeros((2, *batch["ended"].shape), np.float32)
    columns[0, step, slot] = agent.actor.distribution.log_prob(params, as_tensor(batch["action"][step, slot])).numpy()
    columns[1, step, slot] = values.numpy()
    ends = step[rows.last_rows], slot[rows.last_rows]
    after = np.zeros_like(columns[0])  # V(s) of the observation after each segment, at its last step
    after[ends] = next_values.numpy()
    return columns[0], columns[1], after[-1], after[truncated] if truncated.any() else None


def _values(agent: ActorCritic, obs: Any) -> Array:
    return agent.values(tree_map(as_tensor, obs)).detach().numpy()


def _params_and_values(agent: ActorCritic, batch: Batch, with_values: bool) -> tuple[Tensor, Tensor]:
    """Return the distribution's parameters and the values; outputs and features kept from the rollout are reused."""
    obs = tree_map(as_tensor, batch["obs"])
    if "features" in batch:
        return _from_features(agent, as_tensor(batch["features"]), obs, with_values)
    if "network_outputs" not in batch:
        return agent.evaluate({"obs": obs}) if with_values else (agent.actor(obs, {})[0], torch.empty(0))
    params = as_tensor(batch["network_outputs"])
    if isinstance(agent.actor.distribution, Gaussian):
        params = torch.cat([params, agent.actor.network[-1].log_std.expand_as(params)], -1)  # type: ignore[index]
    return params, agent.values(obs) if with_values else torch.empty(0)


def _from_features(agent: ActorCritic, features: Tensor, obs: Any, with_values: bool) -> tuple[Tensor, Tensor]:
    """Return the distribution's parameters and the values, from the features that acting computed."""
    params = agent.actor.apply_mask(run_layers(list(agent.actor.network.children())[-1:], features), obs)
    if not with_values:
        return params, torch.empty(0)
    if isinstance(agent.critic, nn.Linear):  # a second head
        return params, run_layers([agent.critic], features).squeeze(-1)
    return params, agent.values(obs)


@record(formerly=("RunningReturns",))
class RunningReturns(dict[str, Any]):
    """The discounted return of every slot so far, across fragments. A dict, so that it is saved as data."""

    def accumulate(self, rewards: Array, ended: Array, gamma: float, padding: Array | None = None) -> Array:
        """Continue with the rewards of a fragment, and return the discounted return after every step, [T, B].

        Rows that are `padding`, [T, B], change nothing.
        """
        returns = np.empty_like(rewards)
        sums = self.get("sums", np.zeros(rewards.shape[1:], rewards.dtype))
        for row, (reward, over) in enumerate(zip(rewards, ended, strict=True)):
            returns[row] = sums * gamma + reward
            sums = returns[row] * ~over if padding is None else np.where(padding[row], sums, returns[row] * ~over)
        self["sums"] = sums
        return returns


def flatten_steps(agent: ActorCritic, batch: Fragment, names: Sequence[str]) -> Rows:
    """Return columns of a fragment as rows of its valid steps, [N], with the columns of episodes that ended.

    For a recurrent agent the rows are those of segments, one after the other: `segment` has the length of each, [S],
    and `state` the recurrent state at its start.
    """
    episodes = {name: batch[name] for name in EPISODE_COLUMNS if name in batch}
    if agent.actor.recurrent:
        rows = fragment_segments(batch)
        initial = agent.actor.initial_state(len(rows.lengths))
        states = tree_map(lambda part: part.numpy(), segment_states(initial, rows, batch["state"]))
        columns = {name: row_of(batch[name], (rows.step, rows.slot)) for name in names if name in batch}
        return Rows({**columns, "segment": rows.lengths, "state": states, **episodes})
    keep = batch["valid"].ravel() if "valid" in batch else slice(None)

    def flatten(column: Array) -> Array:
        return column.reshape(-1, *column.shape[2:])[keep]

    return Rows({name: tree_map(flatten, batch[name]) for name in names if name in batch} | episodes)
