"""Action selection in rollouts: the policy acts in all slots of a shard. Exploration is in `agents.exploration`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from raceway.agents import Explorer, Policy, Sample
from raceway.agents.feature_actor import FeatureActor
from raceway.agents.numpy_inference import NumpyActor
from raceway.envs import Slots, SteppedSlots
from raceway.rl import row_of
from raceway.rollouts.rollout_arrays import RolloutArrays

Array = np.ndarray


class ActionSelection(RolloutArrays):
    """Rollout arrays whose actions a policy selects.

    Args:
        slots: the environments that it acts in.
        policy: selects the actions.
        clip_actions: whether environments get actions clipped to their bounds. The unclipped action is recorded.
        keep_network_outputs: whether the network's outputs are kept for every step of a fragment.
        explorer: how actions are chosen; by default they are sampled.
    """

    def __init__(
        self,
        slots: Slots,
        policy: Policy,
        *,
        clip_actions: bool,
        keep_network_outputs: bool,
        explorer: Explorer | None = None,
    ) -> None:
        super().__init__(slots)
        self.policy, self.keep_network_outputs = policy, keep_network_outputs
        self.explorer = explorer or Sample()
        self.first_slot = 0
        """The number of its first slot among those of all shards."""
        self.active = np.zeros(slots.num, bool)
        """The slots that are stepped, [B]."""
        self._active_slots: list[int] = []
        self._active_rows: list[int] | slice = []
        # Slots that have finished need no action, unless there is a recurrent state or a knob for each of them.
        by_slot = policy.recurrent or any(knob.ndim for knob in self.explorer.knobs.values())
        self._skip_inactive = isinstance(slots, SteppedSlots) and not by_slot
        space = slots.action_space
        self._bounds = (space.low, space.high) if clip_actions and isinstance(space, spaces.Box) else None
        self.recurrent_state = policy.initial_state(slots.num)
        """The recurrent state of every slot; empty for a feed-forward policy."""
        self._network_outputs: Array | None = None  # of every step of a fragment, if they are kept

    def _set_active(self, slots: Any, active: Any) -> None:
        """Set which of these slots are stepped."""
        self.active[slots] = active
        self._active_slots = np.flatnonzero(self.active).tolist()
        single = len(self._active_slots) == 1  # for which a slice is faster, and needs no copy
        self._active_rows = slice(self._active_slots[0], self._active_slots[0] + 1) if single else self._active_slots

    def _start_acting(self, random: np.random.Generator, num_steps: int | None = None, first_step: int = 0) -> None:
        """Act with the policy's current weights from now on.

        Args:
            random: the generator of exploration.
            num_steps: the length of a fragment.
            first_step: the number of steps that the environments have taken before it.
        """
        explorer = self.explorer.for_slots(self.num_slots, self.first_slot)
        self._actor = self.policy.acting(random, explorer, first_step)
        self._network_outputs = self._features = None
        if num_steps is None or not self.keep_network_outputs:
            return
        if isinstance(self._actor, NumpyActor):
            self._network_outputs = np.empty((num_steps, self.num_slots, self._actor.num_outputs), np.float32)
        elif isinstance(self._actor, FeatureActor):
            self._features = np.empty((num_steps, self.num_slots, self._actor.num_features), np.float32)

    def _select_actions(self, row: int) -> Array:
        """Select and record actions for the observations in a row, and return them as environments get them."""
        if self._skip_inactive and len(self._active_slots) < self.num_slots:
            active_actions, _ = self._actor(row_of(self.obs, (row, self._active_rows)), self.recurrent_state)
            self.action[row, self._active_rows] = active_actions
            return self._clip(self.action[row].copy())  # environments may change the actions that they get
        actions, self.recurrent_state = self._actor(row_of(self.obs, row), self.recurrent_state)
        self.action[row] = actions
        if self._network_outputs is not None:
            self._network_outputs[row] = self._actor.last_outputs  # type: ignore[attr-defined]
        elif self._features is not None:
            self._features[row] = self._actor.last_features  # type: ignore[attr-defined]
        return self._clip(actions)

    def _clip(self, actions: Array) -> Array:
        """Return actions as environments get them."""
        return actions if self._bounds is None else np.clip(actions, *self._bounds)

    def _reset_recurrent_state(self, slots: list[int]) -> None:
        """Reset the recurrent state of these slots."""
        if not slots:
            return
        with torch.inference_mode():
            initial = self.policy.initial_state(len(slots))
            for name, part in self.recurrent_state.items():
                self.recurrent_state[name] = part.index_copy(0, torch.tensor(slots), initial[name])

    def _take_network_outputs(self) -> dict[str, Array]:
        """Return the network's outputs or features for each step as a column of that name, if they were kept."""
        kept = {"network_outputs": self._network_outputs, "features": self._features}
        self._network_outputs = self._features = None
        return {name: column for name, column in kept.items() if column is not None}

    def _copy_recurrent_state(self) -> dict[str, Array]:
        """Return a copy of the recurrent state as arrays."""
        return {name: part.numpy().copy() for name, part in self.recurrent_state.items()}

    def _load_recurrent_state(self, arrays: Any) -> None:
        """Set the recurrent state from what `_copy_recurrent_state` returned."""
        self.recurrent_state = {name: torch.from_numpy(np.array(part)) for name, part in arrays.items()}
