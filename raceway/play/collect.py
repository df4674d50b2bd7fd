"""Playing: one shard's environments and a policy, stepped together, written into arrays that are there already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from raceway.envs import SOME_SLOT, Purpose, Slots, SteppedSlots, seed_of, seed_of_episode
from raceway.errors import EnvironmentFailed
from raceway.play.history import History
from raceway.policies import Policy
from raceway.policies.in_numpy import NumpyActor
from raceway.rl import Batch, empty, row_of, tree_map

Array = np.ndarray

_ENDLESS = 1 << 20  # steps
_ROWS = 512  # for the first episodes; more are made when one is longer


class Collector:
    """Plays whole episodes, or fragments of so many steps.

    A call's random numbers come from its own number, and every episode begins with a seed of its own, so what is
    collected does not depend on where or when it happens.
    """

    def __init__(
        self,
        slots: Slots,
        policy: Policy,
        *,
        seed: int,
        shard: int,
        worker: str = "",
        clip_actions: bool = False,
        keep_given: bool = False,
    ) -> None:
        self.slots, self.policy, self.seed, self.shard = slots, policy, seed, shard
        self.worker, self.keep_given = worker, keep_given
        self._given: Array | None = None  # what the network gave for each step of a fragment, if it is kept
        self.num_slots = slots.num
        self.episode = np.zeros(slots.num, np.int64)  # the number of the episode that each slot plays
        self.playing = np.zeros(slots.num, bool)
        self._active: list[int] = []
        self._rows_of_active: list[int] | slice = []
        # Of slots that have finished nothing need be known, unless something is remembered for each of them.
        self._choosy = isinstance(slots, SteppedSlots) and not policy.recurrent
        space = slots.action_space
        self._bounds = (space.low, space.high) if clip_actions and isinstance(space, spaces.Box) else None
        self.state = policy.initial_state(slots.num)
        self._rows = 0
        self._reserve(_ROWS)
        self._carried = np.zeros((2, slots.num))  # rewards and steps of the episodes that a fragment left open
        self._resets_itself = False  # whether a slot needs a step of its own for that
        self._now = 0  # the row of what is seen now
        self._history = History(slots.num)

    def episodes(self, counts: Sequence[int], number: int = 0) -> Batch:
        """Play so many whole episodes in each slot; `number` tells one such call from the next.

        Returns:
            A batch of all steps, slot by slot, one episode behind the other. `length` has the steps of each, and
            `final_obs` what was seen after the last one, [E, ...].
        """
        left = np.asarray(counts)
        self.episode, self._carried[:] = number * left, 0
        self._play(slice(None), left > 0)
        last_of = self.episode + left - 1
        self._begin(self._active, 0)
        self._actor = self.policy.actor(self._random(number))
        now, final = 0, []
        while self._active:
            if now == self._rows:
                self._check(now)
                self._reserve(2 * now)
                if now >= _ENDLESS:
                    raise self._failure(f"the episode does not end: it has {now:,} steps. Give a time limit, such as "
                                        "max_episode_steps=1000 in env_kwargs", self._active[0], now)  # fmt: skip
            over = self._step(now)
            now += 1
            if not over:
                continue
            final += [(slot, now, tree_map(np.copy, row_of(self.obs, (now, slot)))) for slot in over]
            more = [slot for slot in over if self.episode[slot] < last_of[slot]]
            self._play([slot for slot in over if slot not in more], False)
            self.episode[more] += 1
            self._begin(more, now)
        final.sort(key=lambda one: one[:2])
        batch = self._whole(now, [obs for _, _, obs in final])
        self._check(now, batch["final_obs"], final)
        if self.slots.recalls and not self.slots.repeats:
            self._history.played(self.action[:now].copy(), self.valid[:now].copy())
        return batch | self._scores()

    def fragment(self, num_steps: int, number: int = 0) -> Batch:
        """Play on for so many steps in every slot.

        Returns:
            Columns of [T, B, ...]; `last_obs`, what is seen after them, [B, ...]; `final_obs`, what was seen after each
            truncated step, in the order of `np.nonzero(truncated)`; `state`, what a recurrent policy remembered
            before; `given`, what the network gave for each step, if that is kept and was at hand; and `episode_return`
            and `episode_length` of the episodes that ended. `valid` is there if the environments reset themselves: a
            step in which one did so is none of its episodes'.
        """
        if num_steps > self._rows:
            self._reserve(num_steps)
        if self.playing.all():
            tree_map(lambda rows: np.copyto(rows[0], rows[self._now]), self.obs)
        else:
            self._play(slice(None), True)
            self._carried[:] = 0
            self._begin(self._active, 0)
        state = {name: part.numpy().copy() for name, part in self.state.items()}
        self._actor = self.policy.actor(self._random(number))
        if self.keep_given and isinstance(self._actor, NumpyActor):
            self._given = np.empty((num_steps, self.num_slots, self._actor.num), np.float32)
        final, ends = [], []
        for now in range(num_steps):
            over = self._step(now)
            if not over:
                continue
            for slot in over:
                ends.append((slot, now))
                if self.ended[now, 1, slot]:
                    final.append((slot, now + 1, tree_map(np.copy, row_of(self.obs, (now + 1, slot)))))
            self.episode[over] += 1
            self._begin(over, now + 1)
        self._now = num_steps
        batch = tree_map(np.copy, self._columns(num_steps))
        self._history.played(batch["action"], batch["valid"])
        if not self._resets_itself:
            del batch["valid"]
        batch["last_obs"] = tree_map(np.copy, row_of(self.obs, num_steps))
        batch["final_obs"] = self._stacked([obs for _, _, obs in final])
        self._check(num_steps, batch["final_obs"], final)
        batch.update(self._finished(ends, num_steps) | self._scores())
        if self._given is not None:
            batch["given"], self._given = self._given, None
        return {**batch, "state": state} if state else batch

    def _step(self, now: int) -> list[int]:
        """Take a step in every slot and return those whose episode it ended."""
        actions = self._act(now)
        valid, ended = self.valid[now], self.ended[now]
        try:
            real = self.slots.step(actions, self._active, row_of(self.obs, now + 1), self.reward[now], ended)
        except EnvironmentFailed as error:
            raise self._failure(error.problem, error.slot, now) from error
        self._resets_itself = real is not None
        valid[:] = self.playing if real is None else self.playing & real
        if self.state and real is not None:
            self._forget(np.flatnonzero(self.playing & ~real).tolist())  # it has seen the end of the episode before
        if 1 not in ended.tobytes():  # as nearly always; ended.any() takes six times as long
            return []
        return np.flatnonzero((ended[0] | ended[1]) & valid).tolist()

    def _act(self, now: int) -> Array:
        """Choose actions, and note them."""
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
        return actions if self._bounds is None else np.clip(actions, *self._bounds)

    def _play(self, slots: Any, playing: Any) -> None:
        """Let these slots play, or not."""
        self.playing[slots] = playing
        self._active = np.flatnonzero(self.playing).tolist()
        one = len(self._active) == 1  # for which a slice is faster, and needs no copy
        self._rows_of_active = slice(self._active[0], self._active[0] + 1) if one else self._active

    def _begin(self, slots: list[int], row: int) -> None:
        if not slots:
            return
        seeds = [seed_of_episode(self.seed, self.shard, slot, int(self.episode[slot])) for slot in slots]
        try:
            self.slots.reset(slots, seeds, row_of(self.obs, row))
        except EnvironmentFailed as error:
            raise self._failure(error.problem, error.slot, row) from error
        for slot, seed in zip(slots, seeds, strict=True) if self.slots.recalls else ():
            self._history.began(slot, row, seed, self.slots.anew(slot))
        if self.state:
            self._forget(slots)

    def _forget(self, slots: list[int]) -> None:
        """Let a recurrent policy remember nothing in these slots."""
        if not slots:
            return
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

    def _columns(self, num_rows: int) -> Batch:
        return {
            "obs": row_of(self.obs, slice(0, num_rows)),
            "action": self.action[:num_rows],
            "reward": self.reward[:num_rows],
            "terminated": self.ended[:num_rows, 0],
            "truncated": self.ended[:num_rows, 1],
            "valid": self.valid[:num_rows],
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
        batch["final_obs"] = self._stacked(final)
        return batch

    def _stacked(self, rows: list[Any]) -> Any:
        """Put observations on top of one another, also if there are none."""
        none = row_of(self.obs, (slice(0, 0), 0))
        return tree_map(lambda *parts: np.stack(parts), *rows) if rows else tree_map(np.copy, none)

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

    def _scores(self) -> Batch:
        """Return what whole games brought, where episodes and rewards are something else."""
        scores = getattr(self.slots, "scores", None)
        if scores is None:
            return {}
        table = np.array([(score.total, score.steps) for score in scores], float).reshape(-1, 2)
        scores.clear()
        return {"episode_return": table[:, 0], "episode_length": table[:, 1].astype(np.int64)}

    def _check(self, num_rows: int, final_obs: Any = None, final: Sequence[tuple[int, int, Any]] = ()) -> None:
        """Refuse what is not finite, and say where it first came from. `final` has the places of `final_obs`."""
        valid = self.valid[:num_rows]
        found: list[tuple[int, int, str, Array]] = []  # the row and slot of a step or a reset, and what it gave
        for now, slot, value in _not_finite(self.reward[:num_rows], valid):
            found.append((now, slot, "step of the environment gave a reward", value))
        seen = np.zeros((num_rows + 1, self.num_slots), bool)  # before or after a step that counts
        seen[:-1] = valid
        seen[1:] |= valid
        places: list[tuple[int, int, Array]] = []
        tree_map(lambda rows: places.extend(_not_finite(rows[: num_rows + 1], seen)), self.obs)
        for now, slot, value in places:
            began = self._began(now, slot, num_rows)
            verb = "reset" if began else "step"
            found.append((now if began else now - 1, slot, f"{verb} of the environment gave an observation", value))
        if final:  # a reset may have taken their rows
            places.clear()
            tree_map(lambda rows: places.extend(_not_finite(rows[None])), final_obs)
            for _, which, value in places:
                slot, now = final[which][:2]
                found.append((now - 1, slot, "step of the environment gave an observation", value))
        if found:
            row, slot, problem, value = min(found, key=lambda one: one[0])
            raise self._failure(f"{problem} of {value.ravel()[:8].tolist()}", slot, row)

    def _began(self, row: int, slot: int, num_rows: int) -> bool:
        """Whether an observation is the first of its episode."""
        if row == 0 or not self.valid[row - 1, slot]:
            return True
        goes_on = self.valid[row, slot] if row < num_rows else self.playing[slot] and not self._resets_itself
        return bool(self.ended[row - 1, :, slot].any() and goes_on)

    def _failure(self, problem: str, slot: int, row: int) -> EnvironmentFailed:
        """Return the error that says where in the run it happened. What was begun is not gone on with."""
        self._play(slice(None), False)
        self._scores()
        worker = f"worker {self.worker}, " if self.worker else ""
        if slot == SOME_SLOT:
            return EnvironmentFailed(problem, slot, f"{worker}shard {self.shard}, one of {self.num_slots} environments")
        valid = self.valid[:row, slot]
        ends = np.flatnonzero(self.ended[:row, :, slot].any(1) & valid)
        before = valid[ends[-1] + 1 :].sum() if len(ends) else self._carried[1, slot] + valid.sum()
        place = f"{worker}shard {self.shard}, environment {slot} of {self.num_slots}, step {int(before)} of its episode"
        return EnvironmentFailed(problem, slot, place)

    def saved(self) -> Any:
        """Return what is needed to go on from here, for `resume`."""
        about = {"episode": self.episode.copy(), "playing": self.playing.copy(), "carried": self._carried.copy()}
        if not self.slots.recalls:
            return about
        remembered = {name: part.numpy().copy() for name, part in self.state.items()}
        seen = tree_map(np.copy, row_of(self.obs, self._now))
        return {**about, "history": self._history.state(), "remembered": remembered, "seen": seen}

    def resume(self, saved: Any) -> bool:
        """Go on from there, with fresh environments, and return whether they are where they were.

        Where they cannot be brought back, new episodes begin.
        """
        self.episode = np.array(saved["episode"])
        if "history" not in saved:
            self.episode += 1
            return False
        self._now, self._carried = 0, np.array(saved["carried"])
        self._history.restore(saved["history"])
        here = row_of(self.obs, 0)
        self._history.replay(self.slots, self._bounded, here)
        self._play(slice(None), np.array(saved["playing"]))
        self.state = {name: torch.from_numpy(np.array(part)) for name, part in saved["remembered"].items()}
        same: list[bool] = []
        tree_map(
            lambda now, then: same.append(np.array_equal(now[self.playing], then[self.playing])), here, saved["seen"]
        )
        return all(same)

    def close(self) -> None:
        """Close the environments."""
        self.slots.close()


def _not_finite(rows: Array, counts: Array | None = None) -> list[tuple[int, int, Array]]:
    """Return the row and slot of the first value that is not finite where it counts, and the value; or nothing."""
    if rows.dtype.kind != "f" or np.isfinite(rows).all():
        return []
    bad = ~np.isfinite(rows).reshape(*rows.shape[:2], -1).all(-1)
    if counts is not None:
        bad &= counts
    return [(now, slot, np.asarray(rows[now, slot])) for now, slot in np.argwhere(bad)[:1].tolist()]
