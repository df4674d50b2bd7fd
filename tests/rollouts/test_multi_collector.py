"""With agents that come and go, every step of every agent is in the fragments of its policy, once."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raceway.agents import make_policy
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import ConfigError, EnvironmentFailed
from raceway.rollouts.multi_collector import MultiCollector

OBS_SPACE, ACTION_SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(3)


class ComeAndGo:
    """`early` leaves after two steps, `late` comes after one, `whole` stays for all four.

    An observation has the numbers of the step and the agent; a reward is ten times the step, plus the agent's number.

    Args:
        truncate: truncate episodes instead of terminating them.
        vanish: let agents leave without being terminated or truncated.
        nan: give `whole` a reward of NaN in its third step.
    """

    possible_agents = ("early", "late", "whole")

    def __init__(self, truncate: bool = False, vanish: bool = False, nan: bool = False) -> None:
        self.truncate, self.vanish, self.nan = truncate, vanish, nan
        self.agents: list[str] = []
        self.acted: list[set[str]] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return OBS_SPACE

    def action_space(self, agent: str) -> spaces.Space:
        return ACTION_SPACE

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.now, self.agents = 0, ["early", "whole"]
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def _observe(self, agents: Any) -> dict[str, Any]:
        return {agent: np.array([self.now, self.possible_agents.index(agent)], np.float32) for agent in agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        acted = list(self.agents)
        assert set(actions) == set(acted)
        self.acted.append(set(acted))
        assert all(ACTION_SPACE.contains(np.int64(action)) for action in actions.values())
        self.now += 1
        leaving = {"early"} if self.now == 2 else set()
        over = self.now == 4
        rewards = {agent: 10.0 * self.now + self.possible_agents.index(agent) for agent in acted}
        if self.nan and self.now == 3:
            rewards["whole"] = float("nan")
        gone = leaving | (set(acted) if over else set())
        terminated = {agent: agent in gone and not (self.truncate or self.vanish) for agent in acted}
        truncated = {agent: agent in gone and self.truncate for agent in acted}
        self.agents = [agent for agent in acted if agent not in gone] + (["late"] if self.now == 1 else [])
        return self._observe({*acted, *self.agents}), rewards, terminated, truncated, {}

    def close(self) -> None:
        pass


def collector(num_steps: int = 6, num_envs: int = 1, **kwargs: Any) -> MultiCollector:
    settings = MultiAgentSettings(ComeAndGo, {"early": "a", "late": "b", "whole": "b"}, kwargs)
    policies = {name: make_policy(OBS_SPACE, ACTION_SPACE, hidden=(4,), seed=0) for name in "ab"}
    return MultiCollector(settings, num_envs, policies, num_steps, seed=0, shard=0)


def test_steps_in_which_an_agent_is_absent_are_not_valid() -> None:
    batches = collector().fragment()
    assert batches["a"]["valid"].ravel().tolist() == [True, True, False, False, True, True]
    assert batches["b"]["valid"].T.tolist() == [  # `late`, and `whole`
        [False, True, True, True, False, True],
        [True] * 6,
    ]
    assert batches["a"]["reward"][batches["a"]["valid"]].tolist() == [10, 20, 10, 20]
    assert batches["b"]["reward"][:, 1].tolist() == [12, 22, 32, 42, 12, 22]
    assert batches["a"]["terminated"].ravel().tolist() == [False, True, False, False, False, True]
    assert batches["b"]["terminated"].T.tolist() == [[False, False, False, True, False, False]] * 2
    assert batches["b"]["obs"][1:4, 0].tolist() == [[1, 1], [2, 1], [3, 1]]
    assert batches["b"]["obs"][:, 1, 0].tolist() == [0, 1, 2, 3, 0, 1]


def test_a_fragment_continues_the_previous_one() -> None:
    long, short = collector(12).fragment(), collector(5)
    parts = [short.fragment(number) for number in range(2)]
    for policy in "ab":
        joined = np.concatenate([part[policy]["reward"] * part[policy]["valid"] for part in parts])
        assert joined.tolist() == (long[policy]["reward"] * long[policy]["valid"])[:10].tolist()
    assert parts[0]["b"]["last_obs"].tolist() == parts[1]["b"]["obs"][0].tolist()


def test_an_agents_return_covers_the_steps_in_which_it_was_present() -> None:
    batches = collector(8, num_envs=2).fragment()
    assert batches["a"]["episode_return"].tolist() == [30.0] * 4
    assert batches["a"]["episode_length"].tolist() == [2] * 4
    assert sorted(batches["b"]["episode_return"].tolist()) == [93.0] * 4 + [108.0] * 4
    assert sorted(batches["b"]["episode_length"].tolist()) == [3] * 4 + [4] * 4


@pytest.mark.parametrize("option", ["truncate", "vanish"])
def test_a_truncated_agent_has_a_last_observation(option: str) -> None:
    batches = collector(6, **{option: True}).fragment()
    assert np.argwhere(batches["b"]["truncated"]).tolist() == [[3, 0], [3, 1]]
    assert batches["b"]["final_obs"].tolist() == [[4, 1], [4, 2]]
    assert batches["b"]["obs"][4, 1].tolist() == [0, 2]  # of the next episode
    assert not batches["b"]["terminated"].any()


def test_the_same_number_gives_the_same_actions() -> None:
    first, second = collector().fragment(3), collector().fragment(3)
    assert all((first[policy]["action"] == second[policy]["action"]).all() for policy in "ab")


def test_a_reward_of_nan_is_reported_with_its_agent() -> None:
    with pytest.raises(EnvironmentFailed, match="gave whole a reward of nan"):
        collector(nan=True).fragment()


def test_agents_without_a_policy_or_with_different_spaces_raise() -> None:
    with pytest.raises(ConfigError, match="'late'"):
        MultiAgentSettings(ComeAndGo, {"early": "a", "whole": "b"}).spaces()

    class Uneven(ComeAndGo):
        def action_space(self, agent: str) -> spaces.Space:
            return spaces.Discrete(2 if agent == "late" else 3)

    with pytest.raises(ConfigError, match="late and whole have different spaces"):
        MultiAgentSettings(Uneven, {"early": "a", "late": "b", "whole": "b"}).spaces()
    with pytest.raises(ConfigError, match=r"no_such_module.*raceway\[pettingzoo\]"):
        MultiAgentSettings("no_such_module", {}).spaces()
    with pytest.raises(ConfigError, match="not a parallel environment"):
        MultiAgentSettings(dict, {}).spaces()
