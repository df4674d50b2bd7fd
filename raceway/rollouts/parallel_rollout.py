"""Rollouts in parallel environments, in which all agents act at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raceway.agents.policy import ActingFunction
from raceway.envs.env_vector import environment_error
from raceway.errors import ConfigError
from raceway.rl import Batch, empty, fill, row_of, tree_map
from raceway.rollouts.multi_envs import MultiEnvs
from raceway.rollouts.policy_rows import PolicyRows, blank_rows, same_obs

Array = np.ndarray


class ParallelRows(PolicyRows):
    """The slots of a policy in parallel environments: a row for every step, in which agents may be absent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.obs: Any = empty(self.obs_space, (self.num_rows + 1, self.num))
        self.valid = np.zeros((self.num_rows, self.num), bool)
        self.present = np.zeros(self.num, bool)
        """The agents that act next, [B]."""
        self._continues = np.zeros(self.num, bool)  # slots with an open episode
        self._beginning: list[int] = []  # slots whose recurrent state has to be reset

    def begin_fragment(self, acting: ActingFunction) -> None:
        super().begin_fragment(acting)
        self.valid[:] = False

    def select_actions(self, row: int) -> Any:
        """Select and record actions for the observations in a row, and return them as environments get them."""
        self.reset_beginning()
        actions = self.act(row_of(self.obs, row))
        self.action[row], self.valid[row] = actions, self.present
        self.present[:] = False
        return self.env_actions(actions)

    def reset_beginning(self) -> None:
        """Reset the recurrent state where episodes begin."""
        self.reset_recurrent_state(self._beginning)
        self._beginning.clear()

    def add_step(
        self, row: int, index: int, reward: Any, terminated: bool, truncated: bool, obs: Any, state: Any
    ) -> None:
        """Record the step of an agent, and the observation and global state after it."""
        self.reward[row, index], self.ended[row, :, index] = reward, (terminated, truncated)
        self.totals[:, index] += reward, 1
        if obs is not None:
            fill(row_of(self.obs, row + 1), index, obs)
        if terminated or truncated:
            self.end_episode(row, index)
            self._continues[index] = False
            if truncated:
                # An environment need not observe an agent that leaves: then its last observation is the one before.
                self.add_final(row, index, row_of(self.obs, (row + (obs is not None), index)), state)

    def set_present(self, row: int, index: int, obs: Any) -> None:
        """Record the observation that an agent acts on next."""
        fill(row_of(self.obs, row), index, obs)
        self.present[index] = True
        if not self._continues[index]:
            self._continues[index] = True
            if self.recurrent_state:
                self._beginning.append(index)

    def drop_episodes(self, row: int, indices: list[int]) -> None:
        """Drop the episodes of an environment whose step failed: they are truncated one step earlier."""
        self.forget_step(row, indices)
        for index in indices:
            if row and self.valid[row - 1, index] and not self.ended[row - 1, :, index].any():
                self.ended[row - 1, 1, index] = True
                self.add_final(row - 1, index, row_of(self.obs, (row, index)))
        self.valid[row, indices], self.present[indices], self._continues[indices] = False, False, False
        self.totals[:, indices] = 0

    def fragment(self) -> Batch:
        """Return the recorded steps as a fragment."""
        num_steps = self.num_rows
        columns = {
            "obs": row_of(self.obs, slice(0, num_steps)),
            "action": self.action,
            "reward": self.reward,
            "terminated": self.ended[:, 0],
            "truncated": self.ended[:, 1],
            "valid": self.valid,
            "last_obs": row_of(self.obs, num_steps),
        }
        batch: Batch = tree_map(np.copy, columns)
        tree_map(lambda rows: np.copyto(rows[0], rows[num_steps]), self.obs)
        if not self.valid.all():  # rows of absent agents have what earlier fragments left there
            blank_rows(batch["obs"], ~self.valid, self.blank_obs)
            blank_rows(batch["action"], ~self.valid, self.blank_action)
        if not self.present.all():
            blank_rows(batch["last_obs"], ~self.present, self.blank_obs)
        return {**batch, **self.episode_columns()}

    def discard(self) -> None:
        super().discard()
        self.present[:], self._continues[:] = False, False

    def state(self) -> dict[str, Any]:
        self.reset_beginning()
        arrays = {"present": self.present, "continues": self._continues, "obs": row_of(self.obs, 0)}
        return super().state() | tree_map(np.copy, arrays)

    def restore(self, state: Any) -> None:
        super().restore(state)
        self.present, self._continues = np.array(state["present"]), np.array(state["continues"])
        self._beginning.clear()


class ParallelRollout:
    """Collects fragments of a fixed number of steps in every environment."""

    num: int
    scores = None

    def __init__(self, envs: MultiEnvs, rows: Mapping[str, ParallelRows], num_steps: int) -> None:
        self.envs, self.rows, self.num_steps, self.num = envs, rows, num_steps, envs.num
        self._places: list[dict[str, tuple[ParallelRows, int]]] = [{} for _ in range(envs.num)]
        for policy_rows in rows.values():
            for (slot, agent), index in policy_rows.index.items():
                self._places[slot][agent] = policy_rows, index
        self._stepped = np.zeros((num_steps, envs.num), bool)
        self._env_actions: dict[int, Any] = {}  # of every policy, by the id of its rows
        self._global_state: Array | None = None  # [T + 1, E, ...], if it is collected
        self._started = False
        self._row = 0  # that the next observations are written to

    def collect(self) -> dict[str, Batch]:
        """Continue for `num_steps` steps, and return a fragment for every policy."""
        self._stepped[:] = True
        if not self._started:
            self._started, self._row = True, 0
            for slot in range(self.num):
                self.envs.begin_episode(slot, 0, self._start)
        for rows in self.rows.values():
            rows.reset_beginning()
        recurrent = {policy: rows.recurrent_arrays() for policy, rows in self.rows.items()}
        for row in range(self.num_steps):
            self._row = row + 1
            self._env_actions = {id(rows): rows.select_actions(row) for rows in self.rows.values()}
            for slot in range(self.num):
                self._step(slot, row)
        batches = {policy: rows.fragment() for policy, rows in self.rows.items()}
        self.envs.log.log_steps({policy: batch["action"] for policy, batch in batches.items()}, self._stepped.copy())
        for policy, batch in batches.items():
            batch |= self._global_states(self.rows[policy])
            if recurrent[policy]:
                batch["state"] = recurrent[policy]
        if self._global_state is not None:
            self._global_state[0] = self._global_state[-1]
        return batches

    def _start(self, slot: int, reset_result: Any) -> None:
        """Record the first observations of an episode."""
        obs, _ = reset_result
        for rows, index in self._places[slot].values():
            rows.present[index] = False
        for agent in self.envs.envs[slot].agents:
            rows, index = self._places[slot][agent]
            rows.set_present(self._row, index, obs[agent])
        self._observe_state(slot)

    def _step(self, slot: int, row: int) -> None:
        env, places = self.envs.envs[slot], self._places[slot]
        try:
            acted = list(env.agents)
            actions = {}
            for agent in acted:
                rows, index = places[agent]
                actions[agent] = self._env_actions[id(rows)][index]
            obs, reward, terminated, truncated, infos = env.step(actions)
            self._add_infos(slot, acted, terminated, truncated, infos)
            self.envs.steps[slot] += 1
            self.envs.returns[slot] += sum(float(reward[agent]) for agent in acted)
            remaining = set(env.agents)
            state = self._observe_state(slot)
            for agent in acted:
                rows, index = places[agent]
                is_terminated, is_truncated = bool(terminated[agent]), bool(truncated[agent])
                vanished = agent not in remaining and not (is_terminated or is_truncated)  # counts as truncated
                is_truncated = is_truncated or vanished
                rows.add_step(row, index, reward[agent], is_terminated, is_truncated, obs.get(agent), state)
            for agent in remaining:
                ended = agent in acted and (terminated[agent] or truncated[agent])
                if not ended:
                    rows, index = places[agent]
                    rows.set_present(row + 1, index, obs[agent])
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            self._drop_episode(slot, row, error)
            return
        if not remaining:
            self.envs.end_episode(slot)
            self.envs.begin_episode(slot, row + 1, self._start)

    def _add_infos(self, slot: int, acted: Sequence[str], terminated: Any, truncated: Any, infos: Any) -> None:
        """Record the last infos of the agents that leave with a step."""
        remaining = self.envs.envs[slot].agents
        for agent in acted:
            if agent not in remaining or terminated[agent] or truncated[agent]:
                self.envs.add_info(slot, agent, (infos or {}).get(agent, {}))

    def _drop_episode(self, slot: int, row: int, error: BaseException) -> None:
        """Drop the episode of an environment that failed, and begin another."""
        self.envs.recover(slot, "step", error)
        self._stepped[row, slot] = False
        for rows in self.rows.values():
            rows.drop_episodes(row, [index for (number, _), index in rows.index.items() if number == slot])
        self.envs.begin_episode(slot, row + 1, self._start)

    def _observe_state(self, slot: int) -> Array | None:
        """Record the global state of an environment, if it is collected, and return it."""
        if not self.envs.settings.global_state:
            return None
        try:
            state = np.asarray(self.envs.envs[slot].state())
        except (NotImplementedError, AttributeError) as error:
            raise ConfigError(
                f"global_state is set, but {self.envs.settings.name} has no state(): {error}. Set it to False."
            ) from error
        if self._global_state is None:
            dtype = np.float32 if state.dtype.kind == "f" else state.dtype
            self._global_state = np.zeros((self.num_steps + 1, self.num, *state.shape), dtype)
        self._global_state[self._row, slot] = state
        return self._global_state[self._row, slot].copy()

    def _global_states(self, rows: ParallelRows) -> Batch:
        """Return the columns of the global state, if it is collected."""
        if self._global_state is None:
            return {}
        states = self._global_state
        final = [
            states[row + 1, rows.slots[index][0]] if state is None else state
            for row, index, _, state in sorted(rows.final, key=lambda entry: entry[:2])
        ]
        return {
            "global_state": states[:-1].copy(),
            "last_global_state": states[-1].copy(),
            "final_global_state": np.stack(final) if final else states[0, :0].copy(),
        }

    def discard(self) -> None:
        """Drop all open episodes."""
        self._started = False
        for rows in self.rows.values():
            rows.discard()

    def state(self) -> dict[str, Any]:
        """Return the state between two fragments, as plain data."""
        return {"started": self._started, "rows": {policy: rows.state() for policy, rows in self.rows.items()}}

    def restore(self, state: Any) -> bool:
        """Restore the state, with environments that were restored; return whether they observe the same."""
        self._started = state["started"]
        same = True
        for policy, rows in self.rows.items():
            saved = state["rows"][policy]
            present = rows.present.copy()  # as the replayed environments have it
            rows.restore(saved)
            same &= bool((present == rows.present).all())
            same &= same_obs(row_of(rows.obs, 0), saved["obs"], rows.present)
        return same

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Any) -> None:
        """Reset environments, as logged."""
        self._row = 0
        for slot, seed in zip(slots, seeds, strict=True):
            try:
                self._start(slot, self.envs.envs[slot].reset(seed=seed))
            except (Exception, SystemExit) as error:
                raise environment_error(slot, "reset", error) from error

    def step(self, actions: Any, active: Sequence[int], obs: Any, reward: Array, ended: Array) -> None:
        """Step environments, as logged."""
        env_actions = {id(self.rows[policy]): self.rows[policy].env_actions(part) for policy, part in actions.items()}
        for slot in active:
            env = self.envs.envs[slot]
            try:
                chosen = {}
                for agent in env.agents:
                    rows, index = self._places[slot][agent]
                    chosen[agent] = env_actions[id(rows)][index]
                next_obs, _, *ends_and_infos = env.step(chosen)
                self._add_infos(slot, list(chosen), *ends_and_infos)
                self._start(slot, (next_obs, {}))
            except (Exception, SystemExit) as error:
                raise environment_error(slot, "step", error) from error
