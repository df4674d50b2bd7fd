"""A collector that resumes from a snapshot continues with the same fragments, bit for bit."""

from typing import Any

import numpy as np
import pytest

from raceway.agents import make_policy
from raceway.checkpoints.encoding import decode, encode
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.rl import Batch
from raceway.rl.episode_info import EPISODE_INFO, decode_episodes
from raceway.rollouts.multi_collector import MultiCollector
from tests.rollouts.test_multi_collector import ComeAndGo
from tests.rollouts.test_turn_based_rollout import Memory
from tests.rollouts.turn_games import Scripted

SPREAD = ("pettingzoo:mpe2.simple_spread_v3", {"max_cycles": 7, "continuous_actions": False})
ENVS: dict[str, tuple[Any, dict[str, Any]]] = {
    "spread": SPREAD,
    "come and go": (ComeAndGo, {}),
    "tic-tac-toe": ("pettingzoo:pettingzoo.classic.tictactoe_v3", {}),
    "connect four": ("pettingzoo.classic.connect_four_v3", {}),
    "rock, paper, scissors": ("pettingzoo.classic.rps_v2:env", {"max_cycles": 4}),
    "scripted": (Scripted, {}),
}


def make(name: str, num_steps: int, network: Any, state: bool = False) -> MultiCollector:
    env, kwargs = ENVS[name]
    last = {"agent_2", "player_2", "player_1" if "rock" in name else "", "whole", "c"}
    settings = MultiAgentSettings(env, lambda agent: "last" if agent in last else "rest", kwargs, global_state=state)
    policies = {
        policy: make_policy(*spaces, network=network, hidden=(8,), seed=2)
        for policy, spaces in settings.spaces().items()
    }
    return MultiCollector(settings, 3, policies, num_steps, seed=5, shard=1)


def assert_equal(left: Any, right: Any) -> None:
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_equal(left[key], right[key])
    else:
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes()


def check_resume(name: str, num_steps: int, network: Any, num_before: int, state: bool = False) -> None:
    first = make(name, num_steps, network, state)
    for number in range(num_before):
        first.fragment(number)
    snapshot = decode(*encode(first.snapshot()))  # as a checkpoint holds it
    second = make(name, num_steps, network, state)
    assert second.resume(snapshot)
    for number in range(num_before, num_before + 4):
        expected, resumed = first.fragment(number), second.fragment(number)
        assert_equal(expected, resumed)
        again: dict[str, Batch] = second.snapshot()
        third = make(name, num_steps, network, state)
        assert third.resume(again)


@pytest.mark.parametrize("name", list(ENVS))
@pytest.mark.parametrize("num_steps", [1, 5])
def test_fragments_after_a_snapshot_are_the_same(name: str, num_steps: int) -> None:
    for num_before in (0, 1, 4):
        check_resume(name, num_steps, "mlp", num_before)


@pytest.mark.parametrize("name", ["spread", "tic-tac-toe"])
def test_recurrent_states_are_restored(name: str) -> None:
    check_resume(name, 4, Memory, 3)


def test_the_global_state_is_restored() -> None:
    check_resume("spread", 5, "mlp", 2, state=True)


class Forgetful(Scripted):
    """Its episodes depend on earlier ones."""

    repeats_from_seed = False


class Loses(ComeAndGo):
    """`early`, which leaves first, has no success. Every step changes and returns the same infos."""

    def __init__(self) -> None:
        super().__init__()
        self.infos: dict[str, Any] = {agent: {} for agent in self.possible_agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        *rest, _ = super().step(actions)
        for agent in actions:
            self.infos[agent]["is_success"] = agent != "early"
        return *rest, {agent: self.infos[agent] for agent in actions}


def test_the_infos_of_agents_that_left_before_a_snapshot_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVS, "loses", (Loses, {}))
    first, second = make("loses", 3, "mlp"), make("loses", 3, "mlp")
    first.fragment(0)
    assert second.resume(decode(*encode(first.snapshot())))
    for collector in (first, second):
        collector.fragment(1)
        reports = decode_episodes(collector.episodes[EPISODE_INFO])
        assert [report["success"] for report in reports] == [0, 0, 0]


def test_environments_that_cannot_be_replayed_begin_new_episodes() -> None:
    ENVS["forgetful"] = (Forgetful, {})
    try:
        first, second = make("forgetful", 4, "mlp"), make("forgetful", 4, "mlp")
    finally:
        del ENVS["forgetful"]
    first.fragment(0)
    assert not second.resume(first.snapshot())
    batches = second.fragment(1)
    assert all(batch["restarted"].all() for batch in batches.values())
    assert (batches["rest"]["obs"][0, ::2, 0] == 0).all()  # `a` begins


def test_environments_that_do_not_repeat_themselves_begin_new_episodes() -> None:
    first, second = make("scripted", 4, "mlp"), make("scripted", 4, "mlp")
    first.fragment(0)
    snapshot = first.snapshot()
    snapshot["rollout"]["rows"]["rest"]["current_obs"] = snapshot["rollout"]["rows"]["rest"]["current_obs"] + 1
    assert not second.resume(snapshot)
    batches = second.fragment(1)
    assert all(batch["restarted"].all() for batch in batches.values())
    assert np.isfinite(batches["rest"]["obs"]).all()
