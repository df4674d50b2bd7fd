"""The slots of a policy in turn-based environments: open steps, and the arrays of completed ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.agents.policy import ActingFunction
from raceway.rl import Batch, empty, fill, row_of, tree_map
from raceway.rl.turns import pad_in_front
from raceway.rollouts.policy_rows import PolicyRows

Array = np.ndarray


class TurnRows(PolicyRows):
    """The slots of a policy in turn-based environments: every slot has its own number of steps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.obs: Any = empty(self.obs_space, (self.num_rows, self.num))
        self.count = np.zeros(self.num, np.int64)
        """The number of steps of every slot in this fragment, [B]."""
        self.current_obs: Any = empty(self.obs_space, (self.num,))
        """The observation of every agent at its latest turn, [B, ...]."""
        self.open = np.zeros(self.num, bool)
        """The agents that have acted and not had their next turn yet, [B]."""
        self.open_action: Array = empty(self.action_space, (self.num,))
        self.continues = np.zeros(self.num, bool)  # slots whose last recorded step did not end the episode
        self.restarted = np.zeros(self.num, bool)
        """Slots whose open episode was dropped after an earlier fragment, [B]."""
        self._state_before = self.recurrent_arrays()  # of every slot, before its latest action

    def begin_fragment(self, acting: ActingFunction) -> None:
        super().begin_fragment(acting)
        self.count[:], self.restarted[:] = 0, False

    def first_recurrent_state(self) -> dict[str, Array]:
        """Return the recurrent state before the first step of a fragment: of an open step, before its action."""
        arrays = self.recurrent_arrays()
        for name, part in arrays.items():
            part[self.open] = self._state_before[name][self.open]
        return arrays

    def select_actions(self, slots: list[int]) -> Any:
        """Select actions in these slots, whose agents have their turn, and return them as environments get them."""
        for name, part in self.recurrent_state.items():
            self._state_before[name][slots] = part.numpy()[slots]
        actions = self.act_in(slots, row_of(self.current_obs, slots))
        self.open_action[slots] = actions
        return self.env_actions(actions)

    def set_obs(self, index: int, obs: Any) -> None:
        """Record the observation that an agent acts on next."""
        fill(self.current_obs, index, obs)

    def close_step(self, index: int, reward: Any, terminated: bool, truncated: bool, obs: Any) -> None:
        """Record the open step of an agent, which is complete; `obs` is what the agent observes after it."""
        row = int(self.count[index])
        tree_map(lambda rows, now: rows.__setitem__((row, index), now[index]), self.obs, self.current_obs)
        self.action[row, index], self.reward[row, index] = self.open_action[index], reward
        self.ended[row, :, index] = terminated, truncated
        self.count[index], self.open[index] = row + 1, False
        self.totals[:, index] += reward, 1
        self.continues[index] = not (terminated or truncated)
        if truncated:
            if obs is not None:
                self.set_obs(index, obs)
            self.add_final(row, index, row_of(self.current_obs, index))
        if terminated or truncated:
            self.end_episode(row, index)

    def leave(self, index: int) -> None:
        """Prepare a slot for the next episode."""
        self.totals[:, index] = 0
        self.reset_recurrent_state([index])

    def drop_episode(self, index: int) -> None:
        """Drop the open episode of a slot: it is truncated after its last recorded step."""
        row = int(self.count[index]) - 1
        if self.continues[index] and row >= 0:
            self.ended[row, 1, index] = True
            self.add_final(row, index, row_of(self.current_obs, index))
        elif self.continues[index]:
            self.restarted[index] = True
        self.open[index] = self.continues[index] = False
        self.leave(index)

    def fragment(self) -> Batch:
        """Return the recorded steps as a fragment, with padding in front."""
        for index in np.flatnonzero(self.count == 0).tolist():
            tree_map(lambda rows, now, i=index: rows.__setitem__((0, i), now[i]), self.obs, self.current_obs)
            self.action[0, index] = self.blank_action
        length, padding = self.num_rows, self.num_rows - self.count
        columns = {"obs": self.obs, "action": self.action, "reward": self.reward}
        columns |= {"terminated": self.ended[:, 0], "truncated": self.ended[:, 1]}
        batch: Batch = pad_in_front(columns, self.count, length)
        batch["valid"] = valid = np.arange(length)[:, None] >= padding
        for name in ("reward", "terminated", "truncated"):
            batch[name][~valid] = 0
        self.final = [(row + int(padding[index]), index, *rest) for row, index, *rest in self.final]
        batch |= {"last_obs": tree_map(np.copy, self.current_obs), "num_turns": self.count.copy()}
        if self.restarted.any():
            batch["restarted"] = self.restarted.copy()
        return {**batch, **self.episode_columns()}

    def discard(self) -> None:
        super().discard()
        self.open[:], self.continues[:] = False, False

    def state(self) -> dict[str, Any]:
        names = ("open", "open_action", "continues", "current_obs")
        arrays = {name: getattr(self, name) for name in names} | {"state_before": self._state_before}
        return super().state() | tree_map(np.copy, arrays)

    def restore(self, state: Any) -> None:
        super().restore(state)
        self.open, self.continues = np.array(state["open"]), np.array(state["continues"])
        self.open_action = np.array(state["open_action"])
        self.current_obs = tree_map(np.array, state["current_obs"])
        self._state_before = tree_map(np.array, state["state_before"])
