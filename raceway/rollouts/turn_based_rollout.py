"""Rollouts in turn-based environments (PettingZoo's AEC), in which one agent acts at a time.

A step of an agent begins with its action, and ends with its next turn or its end: rewards in between are added up. It
is recorded when it is complete, so a fragment may begin with the step whose action the previous one selected. An agent
whose episode has ended only leaves; that is no step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raceway.envs.env_vector import environment_error
from raceway.rl import Batch, empty, fill, tree_map
from raceway.rollouts.multi_envs import MultiEnvs
from raceway.rollouts.policy_rows import same_obs
from raceway.rollouts.turn_rows import TurnRows

Array = np.ndarray


class TurnBasedRollout:
    """Collects fragments in turn-based environments: a policy acts for all its agents that have their turn at once.

    An environment continues until one of its agents has as many steps as a fragment has rows, and then waits for the
    others.
    """

    num: int
    scores = None

    def __init__(self, envs: MultiEnvs, rows: Mapping[str, TurnRows], num_steps: int) -> None:
        self.envs, self.rows, self.num_steps, self.num = envs, rows, num_steps, envs.num
        self._places: list[dict[str, tuple[str, int]]] = [{} for _ in range(envs.num)]  # policy and index of agents
        for policy, policy_rows in rows.items():
            for (slot, agent), index in policy_rows.index.items():
                self._places[slot][agent] = policy, index
        self._movers: list[Any] = [None] * envs.num  # the agent that acts next, once it is known
        self._num_left = [0] * envs.num  # agents that have left since the last action
        self._full = [False] * envs.num  # the environments that wait for the next fragment
        self._log: list[tuple[dict[str, Any], Array]] = []  # actions by policy, and the environments that took them
        self._started = False

    def collect(self) -> dict[str, Batch]:
        """Continue until every environment has an agent with `num_steps` steps; return a fragment for every policy."""
        self._full = [False] * self.num
        self._log = []
        if not self._started:
            self.discard()  # the recurrent state begins with the current weights
        recurrent = {policy: rows.first_recurrent_state() for policy, rows in self.rows.items()}
        for slot in range(self.num):
            if not self._started:
                self._begin_episode(slot)
            if self._movers[slot] is None:
                self._advance(slot)
        self._started = True
        while not all(self._full):
            self._take_turns()
        batches = {policy: rows.fragment() for policy, rows in self.rows.items()}
        if self._log:  # a fragment may only have steps of agents that leave
            actions, taken = zip(*self._log, strict=True)
            self.envs.log.log_steps(tree_map(lambda *parts: np.stack(parts), *actions), np.stack(taken))
        for policy, batch in batches.items():
            if recurrent[policy]:
                batch["state"] = recurrent[policy]
        return batches

    def _take_turns(self) -> None:
        """Let the agent whose turn it is act in every environment that does not wait."""
        turns: dict[str, tuple[list[int], list[int]]] = {}  # the environments and indices of agents, by policy
        for slot in range(self.num):
            if not self._full[slot]:
                policy, index = self._places[slot][self._movers[slot]]
                slots, indices = turns.setdefault(policy, ([], []))
                slots.append(slot)
                indices.append(index)
        logged = {policy: empty(rows.action_space, (self.num,)) for policy, rows in self.rows.items()}
        taken = np.zeros(self.num, bool)
        chosen: list[tuple[int, str, int, Any]] = []
        for policy, (slots, indices) in turns.items():
            rows = self.rows[policy]
            actions = rows.select_actions(indices)
            logged[policy][slots], taken[slots] = rows.open_action[indices], True
            chosen += zip(slots, [policy] * len(slots), indices, actions, strict=True)
        self._log.append((logged, taken))
        for slot, policy, index, action in sorted(chosen, key=lambda entry: entry[0]):
            self._movers[slot], self._num_left[slot] = None, 0
            self.rows[policy].open[index] = True
            try:
                self.envs.envs[slot].step(action)
            except (Exception, SystemExit) as error:
                self._drop_episode(slot, error)
            else:
                self.envs.steps[slot] += 1
            self._advance(slot)

    def _advance(self, slot: int) -> None:
        """Record turns until an agent has to act, or has as many steps as a fragment has rows."""
        while self._movers[slot] is None and not self._full[slot]:
            try:
                over = not self.envs.envs[slot].agents
                if over:
                    self._check_episode(slot)
                else:
                    self._record_turn(slot)
            except (Exception, SystemExit) as error:
                self._drop_episode(slot, error)
                continue
            if over:
                self.envs.end_episode(slot)
                self._begin_episode(slot)

    def _record_turn(self, slot: int) -> None:
        """Record the turn of the selected agent: the step it completes, and what it observes. A dead agent leaves."""
        env = self.envs.envs[slot]
        agent = env.agent_selection
        obs, reward, terminated, truncated, info = env.last()
        policy, index = self._places[slot][agent]
        rows = self.rows[policy]
        self.envs.returns[slot] += float(reward)
        if rows.open[index]:
            rows.close_step(index, reward, bool(terminated), bool(truncated), obs)
            # Not before this turn has been recorded as a whole may the environment wait.
            self._full[slot] = bool(rows.count[index] == self.num_steps)
        else:
            rows.totals[0, index] += reward  # before its first action: of its return, but of no step
        if terminated or truncated:
            self._leave(slot, info)
            self._num_left[slot] += 1
            rows.leave(index)
        else:
            rows.set_obs(index, obs)
            self._movers[slot] = agent

    def _leave(self, slot: int, info: Any) -> None:
        """Let the selected agent leave, whose episode has ended, and record its last info."""
        env = self.envs.envs[slot]
        self.envs.add_info(slot, env.agent_selection, info)
        env.step(None)

    def _check_episode(self, slot: int) -> None:
        """Raise if an episode ended in a way that the turn-based API does not allow."""
        for agent, (policy, index) in self._places[slot].items():
            if self.rows[policy].open[index]:
                raise RuntimeError(
                    f"{agent} was removed without a last turn, so the reward of its last action is unknown. The "
                    "environment must select every agent once more after it is terminated or truncated"
                )
        if not self.envs.steps[slot]:
            raise RuntimeError("the episode ended before an agent acted")

    def _begin_episode(self, slot: int) -> None:
        self._movers[slot], self._num_left[slot] = None, 0
        self.envs.begin_episode(slot, len(self._log), lambda slot, result: None)

    def _drop_episode(self, slot: int, error: BaseException) -> None:
        """Drop the episode of an environment that failed, and begin another."""
        self.envs.recover(slot, "step", error)
        for policy, index in self._places[slot].values():
            self.rows[policy].drop_episode(index)
        self._begin_episode(slot)

    def discard(self) -> None:
        """Drop all open episodes."""
        self._started, self._movers = False, [None] * self.num
        for rows in self.rows.values():
            rows.discard()

    def state(self) -> dict[str, Any]:
        """Return the state between two fragments, as plain data."""
        turns = {"movers": list(self._movers), "num_left": list(self._num_left)}
        return {"started": self._started, **turns, "rows": {name: rows.state() for name, rows in self.rows.items()}}

    def restore(self, state: Any) -> bool:
        """Restore the state, with environments that were restored; return whether they observe the same."""
        self._started, self._movers = state["started"], list(state["movers"])
        self._num_left = list(state["num_left"])
        for policy, rows in self.rows.items():
            rows.restore(state["rows"][policy])
        return not self._started or all(self._repeat_turn(slot) for slot in range(self.num))

    def _repeat_turn(self, slot: int) -> bool:
        """Let the agents leave that had left, and observe for the one that acts next; return whether it is the same."""
        env, agent = self.envs.envs[slot], self._movers[slot]
        for _ in range(self._num_left[slot]):
            self._leave(slot, env.last()[4])
        if agent is None:
            return True
        if not env.agents or env.agent_selection != agent:
            return False
        policy, index = self._places[slot][agent]
        rows = self.rows[policy]
        observed = tree_map(np.copy, rows.current_obs)
        fill(observed, index, env.last()[0])
        return same_obs(observed, rows.current_obs, index)

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Any) -> None:
        """Reset environments, as logged."""
        for slot, seed in zip(slots, seeds, strict=True):
            try:
                self.envs.envs[slot].reset(seed=seed)
            except (Exception, SystemExit) as error:
                raise environment_error(slot, "reset", error) from error

    def step(self, actions: Any, active: Sequence[int], obs: Any, reward: Array, ended: Array) -> None:
        """Step environments, as logged: agents whose episode has ended leave before the next one acts."""
        env_actions = {policy: self.rows[policy].env_actions(part) for policy, part in actions.items()}
        for slot in active:
            env = self.envs.envs[slot]
            try:
                while any((last := env.last())[2:4]):
                    self._leave(slot, last[4])
                policy, _ = self._places[slot][env.agent_selection]
                env.step(env_actions[policy][slot])
            except (Exception, SystemExit) as error:
                raise environment_error(slot, "step", error) from error
