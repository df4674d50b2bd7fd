"""Playing: one shard's environments and a policy, stepped together, written into arrays that are there already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from raceway.agents import Policy
from raceway.envs import SOME_SLOT, Purpose, Slots, SteppedSlots, seed_of, seed_of_episode
from raceway.errors import EnvironmentFailed
from raceway.rl import Batch, row_of, tree_map
from raceway.rollouts.acting import Acting
from raceway.rollouts.history import History
from raceway.rollouts.recovery import ItemLost, Recovery
from raceway.rollouts.rollout_arrays import scores_of

Array = np.ndarray

_ENDLESS = 1 << 20  # steps


class Collector(Acting):
    """Plays whole episodes, or fragments of so many steps.

    A call's random numbers come from its own number, and every episode begins with a seed of its own, so what is
    collected does not depend on where or when it happens. Where an environment fails, the episode is dropped and
    another begins, with another seed; see `Recovery`.
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
        recovery: Recovery | None = None,
    ) -> None:
        super().__init__(slots, policy, clip_actions=clip_actions, keep_given=keep_given)
        self.seed, self.shard, self.worker = seed, shard, worker
        self.recovery = recovery or Recovery()
        self.episode = np.zeros(slots.num, np.int64)  # the number of the episode that each slot plays
        self.failures = [0] * slots.num  # of each slot: no seed that brought one comes again
        self._resets_itself = False  # whether a slot needs a step of its own for that
        self._now = 0  # the row of what is seen now
        self._broken = False  # whether episodes that fragments before left open were dropped
        self._history = History(slots.num)
        self._final: list[tuple[int, int, Any]] = []  # of episodes: the slot, the row, and what was seen last
        self._ends: list[tuple[int, int, bool]] | None = None  # in a fragment: slot, row, and whether it was played out

    def episodes(self, counts: Sequence[int], number: int = 0) -> Batch:
        """Play so many whole episodes in each slot; `number` tells one such call from the next.

        Returns:
            A batch of all steps, slot by slot, one episode behind the other. `length` has the steps of each,
            `final_obs` what was seen after the last one, [E, ...], and `episode_lost` the steps of those that were
            dropped, because an environment failed.
        """
        self.failures = [0] * self.num_slots  # a call does not depend on those before
        return self._played(lambda: self._episodes(np.asarray(counts), number))

    def fragment(self, num_steps: int, number: int = 0) -> Batch:
        """Play on for so many steps in every slot.

        Returns:
            Columns of [T, B, ...]; `last_obs`, what is seen after them, [B, ...]; `final_obs`, what was seen after each
            truncated step, in the order of `np.nonzero(truncated)`; `state`, what a recurrent policy remembered
            before; `given`, what the network gave for each step, if that is kept and was at hand; `episode_return` and
            `episode_length` of the episodes that ended, and `episode_lost`, the steps of those that were dropped.
            `valid` is there if the environments reset themselves: a step in which one did so is none of its episodes';
            and if one failed: that step does not count, and the one before it was truncated. `anew`, [B], is there if
            the episodes that were open before it were dropped: no step of an earlier fragment is followed by this one.
        """
        return self._played(lambda: self._fragment(num_steps, number))

    def _played(self, play: Callable[[], Batch]) -> Batch:
        """Play, again if all is lost."""
        while True:
            before = self.recovery.in_a_row
            try:
                return play() | self.recovery.taken()
            except ItemLost as lost:
                self._stop()
                self.recovery.in_a_row = before  # what has ended since is lost too
                self.slots = self.recovery.remade(self.slots, lost, partial(self._place, 0))
                self._count([lost.slot] if isinstance(self.slots, SteppedSlots) else range(self.num_slots))
                self.episode += 1
            except EnvironmentFailed:
                self._stop()
                raise

    def _stop(self) -> None:
        """Let nothing that was begun be gone on with."""
        self._broken = True
        self._play(slice(None), False)
        scores_of(self.slots)

    def _episodes(self, counts: Array, number: int) -> Batch:
        self.episode, self._carried[:] = number * counts, 0
        self._play(slice(None), counts > 0)
        last_of = self.episode + counts - 1
        self._begin(self._active, 0)
        self._act_with(self._random(number))
        now, self._final, self._ends = 0, [], None
        while self._active:
            if now == len(self.valid):
                self._check(now)
                self._reserve(2 * now)
                if now >= _ENDLESS:
                    raise self._failure(f"the episode does not end: it has {now:,} steps. Give a time limit, such as "
                                        "max_episode_steps=1000 in env_kwargs", self._active[0], now)  # fmt: skip
            over = self._step(now)
            now += 1
            if not over:
                continue
            self._final += [(slot, now, self._seen(now, slot)) for slot in over]
            more = [slot for slot in over if self.episode[slot] < last_of[slot]]
            self._play([slot for slot in over if slot not in more], False)
            self.episode[more] += 1
            self._begin(more, now)
        self._final.sort(key=lambda one: one[:2])
        batch = self._whole(now)
        batch["final_obs"] = self._stacked([obs for _, _, obs in self._final])
        self._check(now, batch["final_obs"])
        if self.slots.recalls and not self.slots.repeats:
            self._history.played(self.action[:now].copy(), self.valid[:now].copy())
        return batch | scores_of(self.slots)

    def _fragment(self, num_steps: int, number: int) -> Batch:
        if num_steps > len(self.valid):
            self._reserve(num_steps)
        if self.playing.all():
            tree_map(lambda seen: np.copyto(seen[0], seen[self._now]), self.obs)
        else:
            self._play(slice(None), True)
            self._carried[:] = 0
            self._begin(self._active, 0)
        state = self._remembered()
        self._act_with(self._random(number), num_steps)
        self._final, self._ends = [], []
        for now in range(num_steps):
            over = self._step(now)
            if not over:
                continue
            for slot in over:
                self._ends.append((slot, now, True))
                if self.ended[now, 1, slot]:
                    self._final.append((slot, now + 1, self._seen(now + 1, slot)))
            self.episode[over] += 1
            self._begin(over, now + 1)
        self._now = num_steps
        self._final.sort(key=lambda one: (one[1], one[0]))
        batch = self._columns(num_steps)
        batch["final_obs"] = self._stacked([obs for _, _, obs in self._final])
        self._check(num_steps, batch["final_obs"])
        self._history.played(batch["action"], batch["valid"])
        if not self._resets_itself and all(played_out for _, _, played_out in self._ends):
            del batch["valid"]
        batch.update(self._finished(self._ends, num_steps) | scores_of(self.slots) | self._what_was_given())
        if self._broken:
            self._broken, batch["anew"] = False, np.ones(self.num_slots, bool)
        return {**batch, "state": state} if state else batch

    def _step(self, now: int) -> list[int]:
        """Take a step in every slot and return those whose episode it ended."""
        actions = self._act(now)
        valid, ended = self.valid[now], self.ended[now]
        failure = real = None
        try:
            real = self.slots.step(actions, self._active, row_of(self.obs, now + 1), self.reward[now], ended)
        except EnvironmentFailed as error:
            failure = error
        self._resets_itself = real is not None
        valid[:] = self.playing if real is None else self.playing & real
        if self.state and real is not None:
            self._forget(np.flatnonzero(self.playing & ~real).tolist())  # it has seen the end of the episode before
        if failure is not None:
            go_on = partial(self._step_some, actions, now)
            self._lose(self._without(failure, self._active, now, go_on), now)
        if 1 not in ended.tobytes():  # as nearly always; ended.any() takes six times as long
            return []
        over: list[int] = np.flatnonzero((ended[0] | ended[1]) & valid).tolist()
        if over:
            self.recovery.in_a_row = 0
        return over

    def _step_some(self, actions: Array, now: int, slots: list[int]) -> None:
        self.slots.step(actions, slots, row_of(self.obs, now + 1), self.reward[now], self.ended[now])

    def _lose(self, slots: list[int], now: int) -> None:
        """Drop the episodes that these slots were in when a step failed, and have others begin."""
        self._cross_out(slots, now)
        for slot in slots:
            if self._ends is None:
                begin = now - self._steps_before(now, slot)[0]
                self.valid[begin:now, slot] = False
                continue
            self._ends.append((slot, now, False))
            if now and self.valid[now - 1, slot] and not self.ended[now - 1, :, slot].any():
                self.ended[now - 1, 1, slot] = True
                self._final.append((slot, now, self._seen(now, slot)))
        self._begin(slots, now + 1)

    def _begin(self, slots: list[int], row: int) -> None:
        """Begin episodes in these slots, with others where that fails."""
        here = row_of(self.obs, row)
        while slots:
            seeds, failure = list(map(self._seed, slots)), None
            try:
                self.slots.reset(slots, seeds, here)
            except EnvironmentFailed as error:
                failure = error
            failed = [] if failure is None else self._without(failure, slots, row, partial(self._reset, here))
            for slot, seed in zip(slots, seeds, strict=True) if self.slots.recalls else ():
                self._history.began(slot, row, seed, slot in self.recovery.anew or self.slots.anew(slot))
            if self.state:
                self._forget(slots)
            slots = failed
        self.recovery.anew.clear()

    def _reset(self, here: Any, slots: list[int]) -> None:
        self.slots.reset(slots, list(map(self._seed, slots)), here)

    def _seed(self, slot: int) -> int:
        """Return what the episode of a slot begins with."""
        episode, failures = int(self.episode[slot]), self.failures[slot]
        if not failures:
            return seed_of_episode(self.seed, self.shard, slot, episode)
        return seed_of(self.seed, Purpose.ENVIRONMENT, self.shard, slot, episode, failures)

    def _without(self, error: EnvironmentFailed, slots: list[int], row: int, go_on: Callable[[list[int]], Any]) -> Any:
        """Go on with the slots after one that failed, and return all that did."""
        failed = self.recovery.without(error, slots, self.slots, partial(self._place, row), go_on)
        self._count(failed)
        return failed

    def _count(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.failures[slot] += 1

    def _random(self, number: int) -> np.random.Generator:
        return np.random.default_rng(seed_of(self.seed, Purpose.ACTIONS, self.shard, number))

    def _check(self, num_rows: int, final_obs: Any = None) -> None:
        """Refuse what is not finite, and say where it first came from. `final_obs` are those of `_final`."""
        final = () if final_obs is None else self._final
        found = self._first_not_finite(num_rows, self.playing, not self._resets_itself, final_obs, final)
        if found is not None:
            row, slot, problem = found
            raise ItemLost.at(problem, slot, *self._place(row, slot))

    def _failure(self, problem: str, slot: int, row: int) -> EnvironmentFailed:
        return EnvironmentFailed(problem, slot, self._place(row, slot)[0])

    def _place(self, row: int, slot: int) -> tuple[str, int]:
        """Return where in the run something happened, and how many steps its episode had until then."""
        before, place = 0, f"worker {self.worker}, shard {self.shard}" if self.worker else f"shard {self.shard}"
        if slot == SOME_SLOT:
            return f"{place}, one of {self.num_slots} environments", before
        _, before = self._steps_before(row, slot)
        return f"{place}, environment {slot} of {self.num_slots}, step {before} of its episode", before

    def saved(self) -> Any:
        """Return what is needed to go on from here, for `resume`."""
        arrays = tree_map(np.copy, {"episode": self.episode, "playing": self.playing, "carried": self._carried})
        counts = {"failures": list(self.failures), "in_a_row": self.recovery.in_a_row, "broken": self._broken}
        about: dict[str, Any] = {**arrays, **counts}
        if not (self.slots.recalls and self._history.whole):
            return about
        seen = tree_map(np.copy, row_of(self.obs, self._now))
        return {**about, "history": self._history.state(), "remembered": self._remembered(), "seen": seen}

    def resume(self, saved: Any) -> bool:
        """Go on from there, with fresh environments, and return whether they are where they were.

        Where they cannot be brought back, new episodes begin.
        """
        self.episode, self.failures = np.array(saved["episode"]), list(saved["failures"])
        self.recovery.in_a_row, self._broken = saved.get("in_a_row", 0), True
        if "history" not in saved:
            self.episode += 1
            return False
        self._history.restore(saved["history"])
        here = row_of(self.obs, 0)
        try:
            self._history.replay(self.slots, self._bounded, here)
        except EnvironmentFailed as error:
            self.recovery.bear(error, *self._place(0, error.slot))
            self.slots.close()
            self.slots = self.recovery.make(partial(self._place, 0))
            self._history, self.episode = History(self.num_slots), self.episode + 1
            return False
        self._now, self._carried, self._broken = 0, np.array(saved["carried"]), bool(saved.get("broken"))
        self._play(slice(None), np.array(saved["playing"]))
        self._remember(saved["remembered"])
        same: list[bool] = []
        tree_map(
            lambda now, then: same.append(np.array_equal(now[self.playing], then[self.playing])), here, saved["seen"]
        )
        return all(same)

    def close(self) -> None:
        """Close the environments."""
        self.slots.close()
