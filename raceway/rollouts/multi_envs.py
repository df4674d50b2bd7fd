"""The multi-agent environments of one shard: their episodes, seeds and failures."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from raceway.envs.env_vector import close, environment_error
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import ConfigError, EnvironmentFailed
from raceway.rl import Batch
from raceway.rl.episode_info import success_of
from raceway.rl.seeding import Purpose, derive_seed, episode_seed
from raceway.rollouts.env_restoration import EpisodeLog
from raceway.rollouts.episode_reports import EpisodeEnd, EpisodeReporter
from raceway.rollouts.recovery import Recovery


class MultiEnvs:
    """Environments with several agents. Every episode has its own seed.

    An environment that fails is rebuilt and begins another episode, with another seed, within the failure budget.

    Args:
        settings: makes the environments.
        num: the number of environments.
        seed: the seed of the run.
        shard: the number of the shard.
        worker: the name of the worker, for errors.
        recovery: the failure budget; by default the first failure is raised.
    """

    def __init__(
        self, settings: MultiAgentSettings, num: int, *, seed: int, shard: int, worker: str, recovery: Recovery | None
    ) -> None:
        self.settings, self.num, self.seed, self.shard, self.worker = settings, num, seed, shard, worker
        self.recovery = recovery or Recovery()
        self.episode = np.zeros(num, np.int64)
        """The number of the current episode of each environment."""
        self.steps = [0] * num
        """The number of steps of the current episode of each environment."""
        self.returns = [0.0] * num
        """The rewards of all agents in the current episode of each environment, added up."""
        self._infos: list[dict[str, Any]] = [{} for _ in range(num)]  # of the agents that have left the episode
        self.reporter = EpisodeReporter()
        self._ended: list[tuple[float, int, EpisodeEnd]] = []  # return, length and info of episodes that ended
        self.failures = [0] * num  # part of the seeds, so that a seed that failed is not used again
        self.log = EpisodeLog(num)
        self.envs: list[Any] = []
        try:
            for slot in range(num):
                self.envs.append(self._make(slot))
        except BaseException:
            self.close()
            raise
        self.replayable = all(getattr(env, "repeats_from_seed", True) for env in self.envs)

    def begin_episode(self, slot: int, row: int, start: Callable[[int, Any], None]) -> None:
        """Reset an environment, and retry with other seeds where that fails.

        Args:
            slot: the environment.
            row: the number of steps since the episode log was last written.
            start: called with the environment's number and the result of its reset.
        """
        while True:
            self.steps[slot], self.returns[slot], self._infos[slot] = 0, 0.0, {}
            seed = self._next_seed(slot)
            try:
                start(slot, self.envs[slot].reset(seed=seed))
                break
            except ConfigError:
                raise
            except (Exception, SystemExit) as error:
                self.recover(slot, "reset", error)
        self.log.log_reset(slot, row, seed, True)

    def add_info(self, slot: int, agent: str, info: Any) -> None:
        """Record the last info of an agent that leaves. The environment may use it again for another step."""
        self._infos[slot][agent] = copy.copy(info)

    def end_episode(self, slot: int) -> None:
        """Count an episode that was completed, and report the infos of its agents."""
        infos = self._infos[slot]
        in_order = {agent: infos[agent] for agent in self.envs[slot].possible_agents if agent in infos}
        end = self.reporter.read(joint_info(in_order))
        self._ended.append((self.returns[slot], self.steps[slot], end))
        self.episode[slot] += 1
        self.recovery.consecutive_failures = 0

    def forget_ended(self) -> None:
        """Forget the episodes that ended since the last call of `take_ended`."""
        self._ended = []

    def take_ended(self) -> Batch:
        """Return the episodes that ended since the last call: the return of all agents together, and the length."""
        ended, self._ended = self._ended, []
        totals = {
            "episode_return": np.array([total for total, _, _ in ended], float),
            "episode_length": np.array([length for _, length, _ in ended], np.int64),
        }
        return totals | self.reporter.column([end for _, _, end in ended], lambda: totals)

    def recover(self, slot: int, verb: str, error: BaseException) -> None:
        """Rebuild an environment that failed; raise EnvironmentFailed if the failure budget is exceeded."""
        failure = environment_error(slot, verb, error)
        failure.__cause__ = error
        self.recovery.record_failure(failure, self.locate(slot), self.steps[slot])
        self.rebuild(slot)

    def rebuild(self, slot: int) -> None:
        """Replace an environment, whose next episode gets another seed."""
        self.failures[slot] += 1
        close(self.envs[slot])
        self.envs[slot] = self._make(slot)

    def rebuild_all(self) -> None:
        """Replace all environments, for new episodes."""
        self.close()
        self.envs = [self._make(slot) for slot in range(self.num)]
        self.log, self.episode = EpisodeLog(self.num), self.episode + 1

    def _make(self, slot: int) -> Any:
        while True:
            try:
                return self.settings.make()
            except ConfigError:
                raise
            except (Exception, SystemExit) as error:
                failure = environment_error(slot, "construction", error)
                failure.__cause__ = error
                self.recovery.record_failure(failure, self.locate(slot))

    def _next_seed(self, slot: int) -> int:
        episode, failures = int(self.episode[slot]), self.failures[slot]
        if not failures:
            return episode_seed(self.seed, self.shard, slot, episode)
        return derive_seed(self.seed, Purpose.ENVIRONMENT, self.shard, slot, episode, failures)

    def locate(self, slot: int) -> str:
        """Return the worker, shard, environment and step as text."""
        place = f"worker {self.worker}, shard {self.shard}" if self.worker else f"shard {self.shard}"
        episode, step = self.episode[slot], self.steps[slot]
        return f"{place}, environment {slot} of {self.num}, episode {episode}, step {step} of its episode"

    def state(self) -> dict[str, Any]:
        """Return the state as plain data, with the episode log if the environments can be restored from it."""
        counts = {"failures": list(self.failures), "consecutive_failures": self.recovery.consecutive_failures}
        state = {"episode": self.episode.copy(), "steps": list(self.steps), "returns": list(self.returns), **counts}
        return state | {"episode_log": self.log.state()} if self.replayable and self.log.complete else state

    def restore(self, state: Any, slots: Any) -> bool:
        """Restore the state; return whether the environments were restored, too.

        Args:
            state: what `state` returned.
            slots: resets and steps the environments as logged; see `EpisodeLog.restore_envs`.
        """
        self.episode, self.failures = np.array(state["episode"]), list(state["failures"])
        self.recovery.consecutive_failures = state["consecutive_failures"]
        if "episode_log" not in state:
            self.episode += 1
            return False
        self.log.restore(state["episode_log"])
        try:
            self.log.restore_envs(slots, lambda actions: actions, None)
        except EnvironmentFailed as failure:
            self.recovery.record_failure(failure, self.locate(failure.slot))
            self.rebuild_all()
            return False
        self.steps, self.returns = list(state["steps"]), list(state["returns"])
        return True

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            close(env)


def joint_info(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return the infos of all agents as one: of every entry the value of the first agent that has it, and `agents`.

    `is_success` is true if it is for all agents that have it.

    >>> info = joint_info({"left": {"is_success": True}, "right": {"is_success": False, "speed": 2}})
    >>> info["speed"], info["is_success"]
    (2, 0.0)
    """
    merged: dict[str, Any] = {}
    for info in infos.values():
        merged = {**info, **merged} if isinstance(info, Mapping) else merged
    successes = [success for info in infos.values() if (success := success_of(info)) is not None]
    if successes:
        merged["is_success"] = min(successes)
    return {**merged, "agents": dict(infos)} if infos else {}
