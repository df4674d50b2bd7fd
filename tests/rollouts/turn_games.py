"""Turn-based environments whose turns, rewards and ends are scripted, so that every step is known in advance."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

OBS_SPACE, ACTION_SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(3)

TURNS = ("a", "b", "a", "c", "a", "b")
"""The agents in the order in which they act. After the fourth action `c` is terminated; then all are truncated."""


class Scripted(AECEnv[str, Any, Any]):
    """Every action gives `a` 1, `b` 10 and `c` 100, each times the number of the action, from 1 on.

    An observation has the number of actions so far and the agent's number.

    Args:
        fail_at: raise in this action of the episodes with `fail_in`.
        fail_in: numbers of the episodes that fail, counted over all environments of the process.
        remove_silently: remove `c` without a last turn.
        nan: give a reward of NaN in the second action.
    """

    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    metadata: dict[str, Any] = {"name": "scripted"}  # noqa: RUF012
    num_episodes = 0

    def __init__(
        self, fail_at: int = 0, fail_in: Sequence[int] = (), remove_silently: bool = False, nan: bool = False
    ) -> None:
        super().__init__()
        self.fail_at, self.fail_in, self.remove_silently, self.nan = fail_at, fail_in, remove_silently, nan

    def observation_space(self, agent: str) -> spaces.Space:
        return OBS_SPACE

    def action_space(self, agent: str) -> spaces.Space:
        return ACTION_SPACE

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.episode, Scripted.num_episodes = Scripted.num_episodes, Scripted.num_episodes + 1
        self.agents, self.now = list(self.possible_agents), 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = TURNS[0]

    def observe(self, agent: str) -> Any:
        return np.array([self.now, self.possible_agents.index(agent)], np.float32)

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        assert ACTION_SPACE.contains(np.int64(action))
        assert self.agent_selection == TURNS[self.now]
        self._cumulative_rewards[self.agent_selection] = 0
        self.now += 1
        if self.now == self.fail_at and self.episode in self.fail_in:
            raise RuntimeError("the board fell over")
        for agent in self.agents:
            self.rewards[agent] = float(self.now * 10 ** self.possible_agents.index(agent))
        if self.nan and self.now == 2:
            self.rewards["a"] = float("nan")
        self._accumulate_rewards()
        if self.now == len(TURNS):
            self.truncations = dict.fromkeys(self.agents, True)
            self.agent_selection = self.agents[0]
            return
        self.agent_selection = TURNS[self.now]
        if self.now == 4:
            self.terminations["c"] = True
            if self.remove_silently:
                self.agents.remove("c")
            else:
                self._deads_step_first()
