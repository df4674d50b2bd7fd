"""Collecting rollouts: a policy steps the environments of one shard, and the steps go into preallocated arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from raceway.agents import Explorer, Policy
from raceway.envs import UNKNOWN_SLOT, Slots, SteppedSlots
from raceway.errors import EnvironmentFailed
from raceway.rl import Batch, Episodes, Fragment, episode_sums, row_of, tree_map
from raceway.rl.seeding import Purpose, derive_seed, episode_seed
from raceway.rollouts.action_selection import ActionSelection
from raceway.rollouts.env_restoration import EpisodeLog
from raceway.rollouts.episode_reports import NO_INFO, EpisodeEnd, EpisodeReporter
from raceway.rollouts.recovery import ItemLost, Recovery
from raceway.rollouts.rollout_arrays import take_game_scores

Array = np.ndarray

_MAX_EPISODE_STEPS = 1 << 20


class Collector(ActionSelection):
    """Collects whole episodes, or fragments of a fixed number of steps.

    A call's random numbers are derived from its number, and every episode starts from its own seed, so a batch does not
    depend on where or when it is collected. If an environment fails, its episode is dropped and another begins, with
    another seed; see `Recovery`.
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
        keep_network_outputs: bool = False,
        recovery: Recovery | None = None,
        explorer: Explorer | None = None,
        keep_terminal_obs: bool = False,
    ) -> None:
        super().__init__(
            slots, policy, clip_actions=clip_actions, keep_network_outputs=keep_network_outputs, explorer=explorer
        )
        self.seed, self.shard, self.worker = seed, shard, worker
        self.recovery = recovery or Recovery()
        self.keep_terminal_obs = keep_terminal_obs
        """Whether fragments have the last observations of terminated episodes too, as `terminal_obs`."""
        self.reporter = EpisodeReporter()
        """Selects what is reported of episodes that ended, from their infos."""
        self.episode = np.zeros(slots.num, np.int64)  # the number of the current episode of each slot
        self.failures = [0] * slots.num  # per slot; part of its seeds, so that a seed that failed is not used again
        self._autoresets = False  # whether resets take a step in which nothing else happens
        self._current_row = 0  # the row of the current observations
        self._discarded = False  # whether episodes that earlier fragments left open were dropped
        self._episode_log = EpisodeLog(slots.num)
        self._final: list[tuple[int, int, Any]] = []  # slot, row, and last observation of episodes that ended
        self._ends: list[tuple[int, int, bool]] | None = None  # in a fragment: slot, row, and whether it was completed
        self._episode_ends: dict[tuple[int, int], EpisodeEnd] = {}  # what was read from infos, by slot and row

    def episodes(self, counts: Sequence[int], number: int = 0) -> Episodes:
        """Collect whole episodes.

        Args:
            counts: the number of episodes that each slot collects.
            number: the number of the call, from which its random numbers are derived.

        Returns:
            A batch of all steps, slot by slot, one episode after the other. `length` has the steps of each episode,
            `final_obs` its last observation, [E, ...], and `episode_lost` the steps of each episode that was dropped
            because an environment failed. `episode_info` is as in a fragment.
        """
        self.failures = [0] * self.num_slots  # a call does not depend on earlier ones
        return Episodes(self._collect(lambda: self._collect_episodes(np.asarray(counts), number)))

    def fragment(self, num_steps: int, number: int = 0) -> Fragment:
        """Collect a fragment: continue the episodes of all slots.

        Args:
            num_steps: the number of steps in every slot.
            number: the number of the call, from which its random numbers are derived.

        Returns:
            Columns of [T, B, ...], and:

            - `last_obs`, the observations after the last step, [B, ...];
            - `final_obs`, the last observation of each truncated episode, in the order of `np.nonzero(truncated)`;
            - `terminal_obs`, likewise of each episode that terminated and was not truncated, if these are kept;
            - `state`, the recurrent state before the first step, of a recurrent policy;
            - `network_outputs`, the network's outputs for each step, if they are kept and were available; with images,
              `features` instead, the input of its last layer;
            - `episode_return` and `episode_length` of the episodes that ended;
            - `episode_lost`, the steps of each episode that was dropped;
            - `episode_info`, what is reported of the episodes that ended, if there is anything; see `rl.episode_info`;
            - `valid`, only if some steps may be invalid: those in which an environment reset itself, and those that
              failed, whose episodes are truncated one step earlier;
            - `restarted`, [B], only if the episodes that were open before were dropped, so that this fragment continues
              none of them.
        """
        return Fragment(self._collect(lambda: self._collect_fragment(num_steps, number)))

    def _collect(self, collect: Callable[[], Batch]) -> Batch:
        """Collect an item, and retry if all of it is lost."""
        while True:
            failures_before = self.recovery.consecutive_failures
            try:
                return collect() | self.recovery.take_lost_episodes()
            except ItemLost as lost:
                self._discard_open_episodes()
                self.recovery.consecutive_failures = failures_before  # the episodes that ended since are lost too
                self.slots = self.recovery.rebuild_for_retry(self.slots, lost, partial(self._locate, 0))
                self._count_failures([lost.slot] if isinstance(self.slots, SteppedSlots) else range(self.num_slots))
                self.episode += 1
            except EnvironmentFailed:
                self._discard_open_episodes()
                raise

    def _discard_open_episodes(self) -> None:
        self._discarded = True
        self._set_active(slice(None), False)
        take_game_scores(self.slots)

    def _collect_episodes(self, counts: Array, number: int) -> Batch:
        self.episode, self._open_episodes[:] = number * counts, 0
        self._set_active(slice(None), counts > 0)
        last_episode = self.episode + counts - 1
        self._begin_episodes(self._active_slots, 0)
        self.first_slot = self.shard * self.num_slots
        self._start_acting(self._action_generator(number))
        row, self._final, self._ends, self._episode_ends = 0, [], None, {}
        while self._active_slots:
            if row == len(self.valid):
                self._check_finite(row)
                self._reserve(2 * row)
                if row >= _MAX_EPISODE_STEPS:
                    raise self._failure(f"the episode does not end: it has {row:,} steps. Give a time limit, such as "
                                        "max_episode_steps=1000 in env_kwargs", self._active_slots[0], row)  # fmt: skip
            over = self._step(row)
            row += 1
            if not over:
                continue
            self._final += [(slot, row, self._copy_obs(row, slot)) for slot in over]
            self._read_infos(over, row)
            continuing = [slot for slot in over if self.episode[slot] < last_episode[slot]]
            self._set_active([slot for slot in over if slot not in continuing], False)
            self.episode[continuing] += 1
            self._begin_episodes(continuing, row)
        self._final.sort(key=lambda entry: entry[:2])
        batch = self._whole_episodes(row)
        batch["final_obs"] = self._stack_obs([obs for _, _, obs in self._final])
        self._check_finite(row, batch["final_obs"])
        if self.slots.replayable and not self.slots.repeats_from_seed:
            self._episode_log.log_steps(self.action[:row].copy(), self.valid[:row].copy())
        lengths = batch["length"]
        return batch | self._take_reports(
            [entry[:2] for entry in self._final],
            lambda: {"episode_return": episode_sums(batch["reward"], lengths), "episode_length": lengths},
        )

    def _collect_fragment(self, num_steps: int, number: int) -> Batch:
        if num_steps > len(self.valid):
            self._reserve(num_steps)
        if self.active.all():
            tree_map(lambda rows: np.copyto(rows[0], rows[self._current_row]), self.obs)
        else:
            self._set_active(slice(None), True)
            self._open_episodes[:] = 0
            self._begin_episodes(self._active_slots, 0)
        recurrent_state = self._copy_recurrent_state()
        self.first_slot = self.shard * self.num_slots
        self._start_acting(self._action_generator(number), num_steps, number * num_steps)
        self._final, self._ends, self._episode_ends = [], [], {}
        for row in range(num_steps):
            over = self._step(row)
            if not over:
                continue
            for slot in over:
                self._ends.append((slot, row, True))
                if self.ended[row, 1, slot] or self.keep_terminal_obs:
                    self._final.append((slot, row + 1, self._copy_obs(row + 1, slot)))
            self._read_infos(over, row)
            self.episode[over] += 1
            self._begin_episodes(over, row + 1)
        self._current_row = num_steps
        self._final.sort(key=lambda entry: (entry[1], entry[0]))
        batch = self._copy_columns(num_steps)
        batch["final_obs"] = self._stack_obs([obs for _, _, obs in self._final])
        self._check_finite(num_steps, batch["final_obs"])
        if self.keep_terminal_obs:
            is_truncated = np.array([self.ended[row - 1, 1, slot] for slot, row, _ in self._final], bool)
            batch["terminal_obs"] = tree_map(lambda part: part[~is_truncated], batch["final_obs"])
            batch["final_obs"] = tree_map(lambda part: part[is_truncated], batch["final_obs"])
        self._episode_log.log_steps(batch["action"], batch["valid"])
        if not self._autoresets and all(completed for _, _, completed in self._ends):
            del batch["valid"]
        completed = [(slot, row) for slot, row, is_completed in self._ends if is_completed]
        totals = self._episode_totals(self._ends, num_steps)
        batch.update(totals | self._take_reports(completed, lambda: totals) | self._take_network_outputs())
        if self._discarded:
            self._discarded, batch["restarted"] = False, np.ones(self.num_slots, bool)
        return {**batch, "state": recurrent_state} if recurrent_state else batch

    def _step(self, row: int) -> list[int]:
        """Take a step in every active slot and return those whose episode it ended."""
        actions = self._select_actions(row)
        valid, ended = self.valid[row], self.ended[row]
        failure = stepped = None
        try:
            stepped = self.slots.step(actions, self._active_slots, row_of(self.obs, row + 1), self.reward[row], ended)
        except EnvironmentFailed as error:
            failure = error
        self._autoresets = stepped is not None
        valid[:] = self.active if stepped is None else self.active & stepped
        if self.recurrent_state and stepped is not None:
            # In a slot that only reset, the policy has acted on the last observation of the episode before.
            self._reset_recurrent_state(np.flatnonzero(self.active & ~stepped).tolist())
        if failure is not None:
            proceed = partial(self._step_slots, actions, row)
            self._drop_episodes(self._recover(failure, self._active_slots, row, proceed), row)
        if 1 not in ended.tobytes():  # as nearly always; ended.any() takes six times as long
            return []
        over: list[int] = np.flatnonzero((ended[0] | ended[1]) & valid).tolist()
        if over:
            self.recovery.consecutive_failures = 0
        return over

    def _read_infos(self, slots: list[int], row: int) -> None:
        """Read the infos of the episodes that a step ended, unless whole games are reported."""
        for slot in slots if self.slots.scores is None else ():
            end = self.reporter.read(self.slots.final_info(slot))
            if end is not NO_INFO:
                self._episode_ends[slot, row] = end

    def _take_reports(self, ends: Sequence[tuple[int, int]], totals: Callable[[], Batch]) -> Batch:
        """Return the scores of whole games, where an episode is only a part of one, and the column `episode_info`.

        Args:
            ends: the slot and row of every episode that is reported.
            totals: returns their returns and lengths.
        """
        scores = list(self.slots.scores or ())
        games = take_game_scores(self.slots)
        if games:
            return games | self.reporter.column([self.reporter.read(score.info) for score in scores], lambda: games)
        return self.reporter.column([self._episode_ends.get(end, NO_INFO) for end in ends], totals)

    def _step_slots(self, actions: Array, row: int, slots: list[int]) -> None:
        self.slots.step(actions, slots, row_of(self.obs, row + 1), self.reward[row], self.ended[row])

    def _drop_episodes(self, slots: list[int], row: int) -> None:
        """Drop the episodes of slots in which a step failed, and begin new ones."""
        self._invalidate_step(slots, row)
        for slot in slots:
            if self._ends is None:
                begin = row - self._steps_in_episode(row, slot)[0]
                self.valid[begin:row, slot] = False
                continue
            self._ends.append((slot, row, False))
            if row and self.valid[row - 1, slot] and not self.ended[row - 1, :, slot].any():
                self.ended[row - 1, 1, slot] = True
                self._final.append((slot, row, self._copy_obs(row, slot)))
        self._begin_episodes(slots, row + 1)

    def _begin_episodes(self, slots: list[int], row: int) -> None:
        """Begin episodes in these slots, and retry with other seeds where that fails."""
        first_obs = row_of(self.obs, row)
        while slots:
            seeds, failure = list(map(self._next_seed, slots)), None
            try:
                self.slots.reset(slots, seeds, first_obs)
            except EnvironmentFailed as error:
                failure = error
            proceed = partial(self._reset_slots, first_obs)
            failed = [] if failure is None else self._recover(failure, slots, row, proceed)
            for slot, seed in zip(slots, seeds, strict=True) if self.slots.replayable else ():
                from_seed = slot in self.recovery.rebuilt or self.slots.started_from_seed(slot)
                self._episode_log.log_reset(slot, row, seed, from_seed)
            if self.recurrent_state:
                self._reset_recurrent_state(slots)
            slots = failed
        self.recovery.rebuilt.clear()

    def _reset_slots(self, first_obs: Any, slots: list[int]) -> None:
        self.slots.reset(slots, list(map(self._next_seed, slots)), first_obs)

    def _next_seed(self, slot: int) -> int:
        """Return the seed of the episode that begins in a slot."""
        episode, failures = int(self.episode[slot]), self.failures[slot]
        if not failures:
            return episode_seed(self.seed, self.shard, slot, episode)
        return derive_seed(self.seed, Purpose.ENVIRONMENT, self.shard, slot, episode, failures)

    def _recover(
        self, error: EnvironmentFailed, slots: list[int], row: int, proceed: Callable[[list[int]], Any]
    ) -> list[int]:
        """Rebuild the environment that failed, proceed with the slots after it, and return all that failed."""
        failed = self.recovery.recover(error, slots, self.slots, partial(self._locate, row), proceed)
        self._count_failures(failed)
        return failed

    def _count_failures(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.failures[slot] += 1

    def _action_generator(self, number: int) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, Purpose.ACTIONS, self.shard, number))

    def _check_finite(self, num_rows: int, final_obs: Any = None) -> None:
        """Raise `ItemLost` for the first value that is not finite. `final_obs` are the observations of `_final`."""
        final = () if final_obs is None else self._final
        problem_at = self._find_non_finite(num_rows, self.active, not self._autoresets, final_obs, final)
        if problem_at is not None:
            row, slot, kind, problem = problem_at
            raise ItemLost.at(problem, kind, slot, *self._locate(row, slot))

    def _failure(self, problem: str, slot: int, row: int) -> EnvironmentFailed:
        return EnvironmentFailed(problem, slot, self._locate(row, slot)[0])

    def _locate(self, row: int, slot: int) -> tuple[str, int]:
        """Return the worker, shard, environment and step of a row as text, and the number of steps of its episode."""
        steps, place = 0, f"worker {self.worker}, shard {self.shard}" if self.worker else f"shard {self.shard}"
        if slot == UNKNOWN_SLOT:
            return f"{place}, one of {self.num_slots} environments", steps
        _, steps = self._steps_in_episode(row, slot)
        return f"{place}, environment {slot} of {self.num_slots}, step {steps} of its episode", steps

    def snapshot(self) -> Any:
        """Return the state to `resume` from, as plain data."""
        arrays = tree_map(
            np.copy, {"episode": self.episode, "active": self.active, "open_episodes": self._open_episodes}
        )
        failures = self.recovery.consecutive_failures
        counts = {"failures": list(self.failures), "consecutive_failures": failures, "discarded": self._discarded}
        state: dict[str, Any] = {**arrays, **counts}
        if not (self.slots.replayable and self._episode_log.complete):
            return state
        obs, recurrent_state = tree_map(np.copy, row_of(self.obs, self._current_row)), self._copy_recurrent_state()
        return {**state, "episode_log": self._episode_log.state(), "recurrent_state": recurrent_state, "obs": obs}

    def resume(self, snapshot: Any) -> bool:
        """Resume from a snapshot, with fresh environments; return whether their exact state was restored.

        If they cannot be restored, new episodes begin.
        """
        self.episode, self.failures = np.array(snapshot["episode"]), list(snapshot["failures"])
        self.recovery.consecutive_failures, self._discarded = snapshot.get("consecutive_failures", 0), True
        if "episode_log" not in snapshot:
            self.episode += 1
            return False
        self._episode_log.restore(snapshot["episode_log"])
        current_obs = row_of(self.obs, 0)
        try:
            self._episode_log.restore_envs(self.slots, self._clip, current_obs)
        except EnvironmentFailed as error:
            self.recovery.record_failure(error, *self._locate(0, error.slot))
            self.slots.close()
            self.slots = self.recovery.make_slots(partial(self._locate, 0))
            self._episode_log, self.episode = EpisodeLog(self.num_slots), self.episode + 1
            return False
        self._current_row, self._open_episodes = 0, np.array(snapshot["open_episodes"])
        self._discarded = bool(snapshot.get("discarded"))
        self._set_active(slice(None), np.array(snapshot["active"]))
        self._load_recurrent_state(snapshot["recurrent_state"])
        same: list[bool] = []
        tree_map(
            lambda now, then: same.append(np.array_equal(now[self.active], then[self.active])),
            current_obs,
            snapshot["obs"],
        )
        return all(same)

    def close(self) -> None:
        """Close the environments."""
        self.slots.close()
