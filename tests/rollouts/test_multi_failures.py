"""Environments with several agents that fail are rebuilt, within the failure budget, and their episodes are dropped."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raceway.agents import make_policy
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import EnvironmentFailed
from raceway.rl import n_step_transitions
from raceway.rollouts.multi_collector import MultiCollector
from raceway.rollouts.recovery import Recovery
from tests.rollouts.test_multi_collector import ACTION_SPACE, OBS_SPACE, ComeAndGo


class Fragile(ComeAndGo):
    """Fails in given steps, counted over all environments, and can then not be used any more."""

    num_steps = 0
    faults: dict[int, str] = {}  # noqa: RUF012
    seeds: list[int] = []  # noqa: RUF012
    broken = False

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        assert not self.broken
        self.seeds.append(seed)  # type: ignore[arg-type]
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        assert not self.broken
        fault, Fragile.num_steps = self.faults.get(Fragile.num_steps), Fragile.num_steps + 1
        obs, reward, *rest = super().step(actions)
        if fault == "raises":
            self.broken = True
            raise RuntimeError("the simulator broke down")
        if fault == "shape":
            obs["whole"] = np.zeros(5, np.float32)
        if fault == "nan":
            obs["whole"][:] = np.nan
        return obs, reward, *rest


def fragile(num_steps: int, faults: dict[int, str], max_failures: int = 10) -> MultiCollector:
    Fragile.num_steps, Fragile.faults, Fragile.seeds = 0, faults, []
    settings = MultiAgentSettings(Fragile, {"early": "a", "late": "b", "whole": "b"}, {"truncate": True})
    policies = {name: make_policy(OBS_SPACE, ACTION_SPACE, hidden=(4,), seed=0) for name in "ab"}
    recovery = Recovery(max_failures)
    return MultiCollector(settings, 1, policies, num_steps, seed=0, shard=2, worker="rollouts-1", recovery=recovery)


@pytest.mark.parametrize("fault", ["raises", "shape"])
def test_a_failed_step_is_not_valid_and_its_episode_is_truncated_before_it(fault: str) -> None:
    batches = fragile(8, {6: fault}).fragment()  # the third step of the second episode
    whole = batches["b"]
    assert whole["valid"][:, 1].tolist() == [True] * 6 + [False, True]
    assert whole["reward"][:, 1].tolist() == [12, 22, 32, 42, 12, 22, 0, 12]
    assert whole["truncated"][:, 1].tolist() == [False] * 3 + [True, False, True, False, False]
    assert whole["truncated"][:, 0].tolist() == [False] * 3 + [True, False, True, False, False]
    assert whole["final_obs"].tolist() == [[4, 1], [4, 2], [2, 1], [2, 2]]
    assert whole["obs"][7, 1].tolist() == [0, 2]
    assert sorted(whole["episode_return"].tolist()) == [93, 108]
    assert batches["a"]["truncated"].ravel().tolist() == [False, True, False, False, False, True, False, False]
    assert batches["a"]["episode_length"].tolist() == [2, 2]  # `early` had left before
    assert all(batch["episode_lost"].tolist() == ([2] if fault == "raises" else [3]) for batch in batches.values())
    assert len(set(Fragile.seeds)) == 3


def test_a_failure_in_the_first_row_truncates_the_steps_held_back() -> None:
    collector = fragile(2, {2: "raises"})
    first, second = collector.fragment(0)["b"], collector.fragment(1)["b"]
    assert second["valid"][:, 1].tolist() == [False, True]
    _, held = n_step_transitions(first, 0.5, 3)
    transitions, _ = n_step_transitions(second, 0.5, 3, held)
    own = transitions["obs"][:, 1] == 2  # `whole`
    assert transitions["reward"][own].tolist() == [12 + 22 / 2, 22]
    assert transitions["discount"][own].tolist() == [0.25, 0.5]
    assert transitions["next_obs"][own].tolist() == [[2, 2]] * 2


def test_an_observation_that_is_not_finite_loses_the_fragment() -> None:
    collector = fragile(4, {5: "nan"})
    collector.fragment(0)
    with np.errstate(invalid="ignore"):
        batch = collector.fragment(1)["b"]
    assert batch["restarted"].all()
    assert batch["episode_lost"].tolist() == [0]  # the lost fragment ended its episode, and began another
    assert batch["reward"][:, 1].tolist() == [12, 22, 32, 42]
    assert "restarted" not in collector.fragment(2)["b"]


def test_failures_beyond_the_budget_raise_with_their_place() -> None:
    faults = dict.fromkeys(range(100), "raises")
    with pytest.raises(EnvironmentFailed, match="the simulator broke down") as raised:
        fragile(4, faults, max_failures=2).fragment()
    assert raised.value.num_failures == 3
    assert "worker rollouts-1, shard 2, environment 0 of 1" in raised.value.place
    assert "failure 3 in a row" in raised.value.place


class Bounded(ComeAndGo):
    """Takes actions between -0.1 and 0.1 only."""

    space = spaces.Box(-0.1, 0.1, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return self.space

    def step(self, actions: dict[str, Any]) -> Any:
        assert all(self.space.contains(action) for action in actions.values())
        return super().step(dict.fromkeys(actions, 0))


@pytest.mark.parametrize("clipped", [True, False])
def test_environments_get_clipped_actions_and_unclipped_ones_are_recorded(clipped: bool) -> None:
    settings = MultiAgentSettings(Bounded, lambda _: "all")
    policy = make_policy(OBS_SPACE, Bounded.space, hidden=(4,), seed=0)
    collector = MultiCollector(
        settings, 2, {"all": policy}, 8, seed=0, shard=0, clip_actions=["all"] if clipped else []
    )
    if not clipped:
        with pytest.raises(EnvironmentFailed, match="AssertionError"):
            collector.fragment()
        return
    actions = [collector.fragment(number)["all"] for number in range(2)]
    assert all(np.abs(batch["action"][batch["valid"]]).max() > 0.5 for batch in actions)
    snapshot = collector.snapshot()
    again = MultiCollector(settings, 2, {"all": policy}, 8, seed=0, shard=0, clip_actions=["all"])
    assert again.resume(snapshot)  # the logged actions are clipped, too
