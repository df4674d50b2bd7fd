"""A policy in all slots of a shard: what it chooses, and what it remembers of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from raceway.agents import Policy
from raceway.agents.numpy_inference import NumpyActor
from raceway.envs import Slots, SteppedSlots
from raceway.rl import row_of
from raceway.rollouts.rollout_arrays import RolloutArrays

Array = np.ndarray


class Acting(RolloutArrays):
    """Rows that a policy writes its actions into.

    Args:
        slots: that it acts in.
        policy: that acts.
        clip_actions: whether environments get actions within their bounds. What was drawn is what is noted.
        keep_given: whether what the network gave is kept for every step of a fragment.
    """

    def __init__(self, slots: Slots, policy: Policy, *, clip_actions: bool, keep_given: bool) -> None:
        super().__init__(slots)
        self.policy, self.keep_given = policy, keep_given
        self.playing = np.zeros(slots.num, bool)
        self._active: list[int] = []
        self._rows_of_active: list[int] | slice = []
        # Of slots that have finished nothing need be known, unless something is remembered for each of them.
        self._choosy = isinstance(slots, SteppedSlots) and not policy.recurrent
        space = slots.action_space
        self._bounds = (space.low, space.high) if clip_actions and isinstance(space, spaces.Box) else None
        self.state = policy.initial_state(slots.num)
        """What a recurrent policy remembers."""
        self._given: Array | None = None  # what the network gave for each step of a fragment, if it is kept

    def _play(self, slots: Any, playing: Any) -> None:
        """Let these slots play, or not."""
        self.playing[slots] = playing
        self._active = np.flatnonzero(self.playing).tolist()
        one = len(self._active) == 1  # for which a slice is faster, and needs no copy
        self._rows_of_active = slice(self._active[0], self._active[0] + 1) if one else self._active

    def _act_with(self, random: np.random.Generator, num_steps: int | None = None) -> None:
        """Act with the weights as they are now; for so many steps, if that is known."""
        self._actor = self.policy.actor(random)
        self._given = None
        if num_steps is not None and self.keep_given and isinstance(self._actor, NumpyActor):
            self._given = np.empty((num_steps, self.num_slots, self._actor.num), np.float32)

    def _act(self, now: int) -> Array:
        """Choose actions for what is seen in a row, and note them."""
        if self._choosy and len(self._active) < self.num_slots:
            some, _ = self._actor(row_of(self.obs, (now, self._rows_of_active)), self.state)
            self.action[now, self._rows_of_active] = some
            return self._bounded(self.action[now].copy())  # environments may change what they are given
        actions, self.state = self._actor(row_of(self.obs, now), self.state)
        self.action[now] = actions
        if self._given is not None:
            self._given[now] = self._actor.given  # type: ignore[attr-defined]
        return self._bounded(actions)

    def _bounded(self, actions: Array) -> Array:
        """Return actions as environments get them."""
        return actions if self._bounds is None else np.clip(actions, *self._bounds)

    def _forget(self, slots: list[int]) -> None:
        """Let a recurrent policy remember nothing in these slots."""
        if not slots:
            return
        with torch.inference_mode():
            fresh = self.policy.initial_state(len(slots))
            for name, part in self.state.items():
                self.state[name] = part.index_copy(0, torch.tensor(slots), fresh[name])

    def _what_was_given(self) -> dict[str, Array]:
        """Return what the network gave for each step, as a column, if it was kept."""
        given, self._given = self._given, None
        return {} if given is None else {"given": given}

    def _remembered(self) -> dict[str, Array]:
        """Return what it remembers, as data."""
        return {name: part.numpy().copy() for name, part in self.state.items()}

    def _remember(self, saved: Any) -> None:
        """Remember that."""
        self.state = {name: torch.from_numpy(np.array(part)) for name, part in saved.items()}
