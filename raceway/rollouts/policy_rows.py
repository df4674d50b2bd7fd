"""The slots of one policy in multi-agent environments: how it acts in them, and the arrays of their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from raceway.agents import Policy
from raceway.agents.policy import ActingFunction, ExploringActor
from raceway.envs.env_vector import action_converter
from raceway.rl import Batch, empty, row_of, tree_map

Array = np.ndarray


class PolicyRows:
    """The slots of a policy, ordered by environment and then by agent, and the arrays of their steps.

    Args:
        policy: selects the actions.
        policy_spaces: its observation and action space.
        slots: the environment and agent of every slot.
        num_rows: the number of rows of a fragment.
        clip_actions: whether environments get actions clipped to their bounds. The unclipped action is recorded.
    """

    def __init__(
        self,
        policy: Policy,
        policy_spaces: tuple[spaces.Space, spaces.Space],
        slots: list[tuple[int, str]],
        num_rows: int,
        clip_actions: bool,
    ) -> None:
        self.policy, self.slots, self.num_rows, self.num = policy, slots, num_rows, len(slots)
        self.index = {slot: index for index, slot in enumerate(slots)}
        num_agents = len({agent for _, agent in slots})
        self.agent = np.arange(self.num) % num_agents
        """The number of every slot's agent among those with this policy, [B]."""
        self.obs_space, self.action_space = policy_spaces
        self._convert = action_converter(self.action_space)
        space = self.action_space
        self._bounds = (space.low, space.high) if clip_actions and isinstance(space, spaces.Box) else None
        self.blank_obs, self.blank_action = empty(self.obs_space, ()), empty(space, ())
        """What rows without a step have."""
        self.action: Array = empty(space, (num_rows, self.num))
        self.reward = np.zeros((num_rows, self.num), np.float32)
        self.ended = np.zeros((num_rows, 2, self.num), bool)
        self.totals = np.zeros((2, self.num))  # return and length so far of open episodes
        self.final: list[tuple[int, int, Any, Any]] = []
        """Row, index, last observation and last global state of truncated episodes."""
        self._ended_totals: list[tuple[int, int, float, float]] = []  # row, index, return and length of ended episodes
        self.recurrent_state = {name: part.detach() for name, part in policy.initial_state(self.num).items()}
        """The recurrent state of every slot; empty for a feed-forward policy."""

    def begin_fragment(self, acting: ActingFunction) -> None:
        """Act by this function from now on, and forget the steps of the last fragment."""
        self._actor = acting
        self.final.clear()
        self._ended_totals.clear()
        self.reward[:] = 0
        self.ended[:] = False

    def act(self, obs: Any) -> Array:
        """Return actions for the observations of all slots, [B, ...], and update the recurrent state."""
        actions, self.recurrent_state = self._actor(obs, self.recurrent_state)
        return actions

    def act_in(self, slots: list[int], obs: Any) -> Array:
        """Return actions for the observations of some slots, and update their recurrent state."""
        if isinstance(self._actor, ExploringActor):
            self._actor.slots = slots
        if not self.recurrent_state:
            return self._actor(obs, {})[0]
        index = torch.tensor(slots)
        with torch.inference_mode():
            state = {name: part[index] for name, part in self.recurrent_state.items()}
            actions, state = self._actor(obs, state)
            for name, part in self.recurrent_state.items():
                self.recurrent_state[name] = part.index_copy(0, index, state[name])
        return actions

    def env_actions(self, actions: Array) -> Any:
        """Return actions as environments get them."""
        return self._convert(actions if self._bounds is None else np.clip(actions, *self._bounds))

    def reset_recurrent_state(self, slots: list[int]) -> None:
        """Reset the recurrent state of these slots, if the policy has one."""
        if not slots or not self.recurrent_state:
            return
        with torch.inference_mode():
            initial = self.policy.initial_state(len(slots))
            for name, part in self.recurrent_state.items():
                self.recurrent_state[name] = part.index_copy(0, torch.tensor(slots), initial[name])

    def recurrent_arrays(self) -> dict[str, Array]:
        """Return a copy of the recurrent state as arrays."""
        return {name: part.numpy().copy() for name, part in self.recurrent_state.items()}

    def load_recurrent_arrays(self, arrays: Any) -> None:
        """Set the recurrent state from what `recurrent_arrays` returned."""
        self.recurrent_state = {name: torch.from_numpy(np.array(part)) for name, part in arrays.items()}

    def end_episode(self, row: int, index: int) -> None:
        """Record the totals of an episode that ended with a row."""
        self._ended_totals.append((row, index, *self.totals[:, index].tolist()))
        self.totals[:, index] = 0

    def add_final(self, row: int, index: int, obs: Any, state: Any = None) -> None:
        """Record a copy of the last observation of a truncated episode, and the global state."""
        final = tree_map(np.copy, obs)
        if self.policy.has_mask and not final["action_mask"].any():
            # Nobody acts any more, so some environments allow nothing; but its value is needed.
            final["action_mask"][...] = 1
        self.final.append((row, index, final, state))

    def forget_step(self, row: int, indices: list[int]) -> None:
        """Remove a step that failed after a part of it was recorded."""
        self.reward[row, indices], self.ended[row][:, indices] = 0, False
        self.final = [entry for entry in self.final if entry[0] != row or entry[1] not in indices]
        self._ended_totals = [entry for entry in self._ended_totals if entry[0] != row or entry[1] not in indices]

    def episode_columns(self) -> Batch:
        """Return the columns of episodes that ended, and the observations after those that were truncated."""
        final = sorted(self.final, key=lambda entry: entry[:2])
        no_obs = tree_map(lambda part: part[None][:0], self.blank_obs)
        table = np.array([entry[2:] for entry in self._ended_totals], float).reshape(-1, 2)
        return {
            "final_obs": tree_map(lambda *parts: np.stack(parts), *(obs for _, _, obs, _ in final))
            if final
            else tree_map(np.copy, no_obs),
            "episode_return": table[:, 0],
            "episode_length": table[:, 1].astype(np.int64),
        }

    def discard(self) -> None:
        """Drop all open episodes."""
        self.totals[:] = 0
        self.reset_recurrent_state(list(range(self.num)))

    def state(self) -> dict[str, Any]:
        """Return the state between two fragments, as plain data."""
        return {"totals": self.totals.copy(), "recurrent_state": self.recurrent_arrays()}

    def restore(self, state: Any) -> None:
        """Restore the state."""
        self.totals = np.array(state["totals"])
        self.load_recurrent_arrays(state["recurrent_state"])


def blank_rows(columns: Any, absent: Array, blank: Any) -> None:
    """Set the absent rows of a tree of arrays to its blank value."""
    tree_map(lambda part, value: part.__setitem__(absent, value), columns, blank)


def same_obs(obs: Any, other: Any, rows: Any) -> bool:
    """Whether two trees of arrays are equal in some rows."""
    same: list[bool] = []
    tree_map(lambda left, right: same.append(np.array_equal(left, right)), row_of(obs, rows), row_of(other, rows))
    return all(same)
