"""Playing: one shard's environments and a policy, stepped together, written into arrays that are there already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from raceway.envs import Purpose, Slots, seed_of
from raceway.errors import EnvironmentFailed
from raceway.policies import Policy
from raceway.rl import Batch, empty, row_of, tree_map

Array = np.ndarray

_ROWS = 512  # for the first episodes; more are made when one is longer


class Collector:
    """Plays whole episodes, or fragments of so many steps.

    A call's random numbers come from its own number, and every episode begins with a seed of its own, so what is
    collected does not depend on where or when it happens.
    """

    def __init__(self, slots: Slots, policy: Policy, *, seed: int, shard: int, worker: str = "") -> None:
        self.slots, self.policy, self.seed, self.shard = slots, policy, seed, shard
        self.worker = worker
        self.num_slots = slots.num
        self.episode = np.zeros(slots.num, np.int64)  # the number of the episode that each slot plays
        self.playing = np.zeros(slots.num, bool)
        self._active: list[int] = []
        self.state = policy.initial_state(slots.num)
        self._rows = 0
        self._reserve(_ROWS)
        self._carried = np.zeros((2, slots.num))  # rewards and steps of the episodes that a fragment left open

    def episodes(self, counts: Sequence[int], number: int = 0) -> Batch:
        """Play so many whole episodes in each slot; `number` tells one such call from the next.

        Returns:
            A batch of all steps, slot by slot, one episode behind the other. `length` has the steps of each, and
            `final_obs` what was seen after the last one, [E, ...].
        """
        left = np.asarray(counts)
        self.episode = number * left
        self._play(slice(None), left > 0)
        last_of = self.episode + left - 1
        self._begin(self._active, 0)
        random, now, final = self._random(number), 0, []
        while self._active:
            if now == self._rows:
                self._check(now)
                self._reserve(2 * now)
            over = self._step(now, random)
            now += 1
            if not over:
                continue
            final += [(slot, now, tree_map(np.copy, row_of(self.obs, (now, slot)))) for slot in over]
            more = [slot for slot in over if self.episode[slot] < last_of[slot]]
            self._play([slot for slot in over if slot not in more], False)
            self.episode[more] += 1
            self._begin(more, now)
        self._check(now)
        return self._whole(now, [obs for _, _, obs in sorted(final, key=lambda one: one[:2])])

    def fragment(self, num_steps: int, number: int = 0) -> Batch:
        """Play on for so many steps in every slot.

        Returns:
            Columns of [T, B, ...]; `last_obs`, what is seen after them, [B, ...]; `final_obs`, what was seen after each
            truncated step, in the order of `np.nonzero(truncated)`; `state`, what a recurrent policy remembered
            before; and `episode_return` and `episode_length` of the episodes that ended. `valid` is there if the
            environments reset themselves: a step in which one did so is none of its episodes'.
        """
        if num_steps > self._rows:
            self._reserve(num_steps)
        if self.playing.all():
            tree_map(lambda rows: np.copyto(rows[0], rows[self._now]), self.obs)
        else:
            self._play(slice(None), True)
            self._begin(self._active, 0)
        state = {name: part.numpy().copy() for name, part in self.state.items()}
        random, final, ends = self._random(number), [], []
        for now in range(num_steps):
            over = self._step(now, random)
            if not over:
                continue
            for slot in over:
                ends.append((slot, now))
                if self.ended[now, 1, slot]:
                    final.append(tree_map(np.copy, row_of(self.obs, (now + 1, slot))))
            self.episode[over] += 1
            self._begin(over, now + 1)
        self._now = num_steps
        self._check(num_steps)
        batch = tree_map(np.copy, self._columns(slice(0, num_steps)))
        if self.valid[:num_steps].all():
            del batch["valid"]
        batch["last_obs"] = tree_map(np.copy, row_of(self.obs, num_steps))
        batch["final_obs"] = _stacked(final, row_of(self.obs, (slice(0, 0), 0)))
        batch.update(self._finished(ends, num_steps))
        return {**batch, "state": state} if state else batch

    def _step(self, now: int, random: np.random.Generator) -> list[int]:
        """Take a step in every slot and return those whose episode it ended."""
        actions, self.state = self.policy.act(row_of(self.obs, now), self.state, random)
        self.action[now] = actions
        valid, ended = self.valid[now], self.ended[now]
        try:
            real = self.slots.step(actions, self._active, row_of(self.obs, now + 1), self.reward[now], ended)
        except EnvironmentFailed as error:
            raise self._failure(error.problem, error.slot, now) from error
        valid[:] = self.playing if real is None else self.playing & real
        over = (ended[0] | ended[1]) & valid
        return np.flatnonzero(over).tolist() if over.any() else []

    def _play(self, slots: Any, playing: Any) -> None:
        """Let these slots play, or not."""
        self.playing[slots] = playing
        self._active = np.flatnonzero(self.playing).tolist()

    def _begin(self, slots: list[int], row: int) -> None:
        if not slots:
            return
        seeds = [seed_of(self.seed, Purpose.ENVIRONMENT, self.shard, slot, int(self.episode[slot])) for slot in slots]
        try:
            self.slots.reset(slots, seeds, row_of(self.obs, row))
        except EnvironmentFailed as error:
            raise self._failure(error.problem, error.slot, row) from error
        if self.state:
            with torch.inference_mode():
                fresh = self.policy.initial_state(len(slots))
                for name, part in self.state.items():
                    self.state[name] = part.index_copy(0, torch.tensor(slots), fresh[name])

    def _random(self, number: int) -> np.random.Generator:
        return np.random.default_rng(seed_of(self.seed, Purpose.ACTIONS, self.shard, number))

    def _reserve(self, rows: int) -> None:
        """Make the arrays that long, keeping what they hold."""
        num, before = self.num_slots, self._rows
        old = {name: getattr(self, name) for name in ("obs", "action", "reward", "ended", "valid")} if before else {}
        self.obs: Any = empty(self.slots.observation_space, (rows + 1, num))
        self.action: Array = empty(self.slots.action_space, (rows, num))
        self.reward = np.zeros((rows, num), np.float32)
        self.ended = np.zeros((rows, 2, num), bool)
        self.valid = np.zeros((rows, num), bool)
        for name, arrays in old.items():
            kept = before + (name == "obs")
            tree_map(lambda new, then, kept=kept: np.copyto(new[:kept], then[:kept]), getattr(self, name), arrays)
        self._rows = rows

    def _columns(self, rows: Any) -> Batch:
        ended = self.ended[rows]
        return {
            "obs": row_of(self.obs, rows),
            "action": self.action[rows],
            "reward": self.reward[rows],
            "terminated": ended[..., 0, :] if isinstance(rows, slice) else ended,
            "truncated": ended[..., 1, :] if isinstance(rows, slice) else ended,
            "valid": self.valid[rows],
        }

    def _whole(self, now: int, final: list[Any]) -> Batch:
        """Return the steps of the episodes, one behind the other."""
        slots, steps = np.nonzero(self.valid[:now].T)
        batch = {
            "obs": row_of(self.obs, (steps, slots)),
            "action": self.action[steps, slots],
            "reward": self.reward[steps, slots],
            "terminated": self.ended[steps, 0, slots],
            "truncated": self.ended[steps, 1, slots],
        }
        ends = np.flatnonzero(batch["terminated"] | batch["truncated"])
        batch["length"] = np.diff(ends, prepend=-1)
        batch["final_obs"] = _stacked(final, row_of(self.obs, (slice(0, 0), 0)))
        return batch

    def _finished(self, ends: list[tuple[int, int]], num_steps: int) -> Batch:
        """Return the returns and lengths of the episodes that ended in a fragment."""
        valid = self.valid[:num_steps]
        sums = np.stack([np.cumsum(self.reward[:num_steps] * valid, 0, float), np.cumsum(valid, 0, float)])
        before, found = -self._carried, []
        for slot, now in ends:
            found.append(sums[:, now, slot] - before[:, slot])
            before[:, slot] = sums[:, now, slot]
        self._carried = sums[:, -1] - before
        table = np.array(found).reshape(-1, 2)
        return {"episode_return": table[:, 0], "episode_length": table[:, 1].astype(np.int64)}

    def _check(self, num_rows: int) -> None:
        """Refuse what is not finite, and say where it first came from."""
        parts: dict[str, Array] = {"a reward": np.where(self.valid[:num_rows], self.reward[:num_rows], 0)}
        tree_map(lambda rows: parts.update({f"an observation ({len(parts)})": rows[: num_rows + 1]}), self.obs)
        for what, rows in parts.items():
            if rows.dtype.kind != "f" or np.isfinite(rows).all():
                continue
            bad = ~np.isfinite(rows).reshape(*rows.shape[:2], -1).all(-1)
            now, slot = (int(index[0]) for index in np.nonzero(bad))
            after = "reset" if now == 0 and what != "a reward" else "step"
            step = now if what == "a reward" else now - 1
            shown = np.asarray(rows[now, slot]).ravel()[:8].tolist()
            raise self._failure(f"{after} of the environment gave {what.partition(' (')[0]} of {shown}", slot, step)

    def _failure(self, problem: str, slot: int, row: int) -> EnvironmentFailed:
        """Return the error that says where in the run it happened."""
        ended = self.ended[: max(row, 0), :, slot].any(1) & self.valid[: max(row, 0), slot]
        begins = np.flatnonzero(ended)
        step = row - (begins[-1] + 1 if len(begins) else 0)
        worker = f"worker {self.worker}, " if self.worker else ""
        place = (
            f"{worker}shard {self.shard}, environment {slot} of {self.num_slots}, step {max(step, 0)} of its episode"
        )
        return EnvironmentFailed(problem, slot, place)

    def close(self) -> None:
        self.slots.close()


def _stacked(rows: list[Any], like: Any) -> Any:
    """Put observations on top of one another; of none, arrays of the form of `like`."""
    return tree_map(lambda *parts: np.stack(parts), *rows) if rows else tree_map(np.copy, like)
