"""The cost of a step with several agents is measured before a run, to choose the number of workers."""

import time
from typing import Any

import pytest

from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import EnvironmentFailed
from raceway.training.multi_step_cost import measure_joint_step
from tests.rollouts.test_multi_collector import ComeAndGo


class Slow(ComeAndGo):
    """Waits in every step, and fails in the given one."""

    num_steps = 0

    def __init__(self, fails_in: int | None = None) -> None:
        super().__init__()
        self.fails_in = fails_in

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.num_steps += 1
        if self.num_steps == self.fails_in:
            raise RuntimeError("broken")
        time.sleep(0.02)
        return super().step(actions)


@pytest.mark.parametrize("fails_in", [None, 6])
def test_waiting_is_no_computing(fails_in: int | None) -> None:
    cost = measure_joint_step(MultiAgentSettings(Slow, lambda _: "all", {"fails_in": fails_in}))
    assert cost.wall >= 0.02
    assert cost.cpu < cost.wall / 2


def test_an_environment_that_fails_at_once_is_an_error() -> None:
    with pytest.raises(EnvironmentFailed, match="broken"):
        measure_joint_step(MultiAgentSettings(Slow, lambda _: "all", {"fails_in": 1}))


def test_games_of_turns_obey_their_masks() -> None:
    settings = MultiAgentSettings("pettingzoo:pettingzoo.classic.tictactoe_v3", lambda _: "all")
    assert 0 < measure_joint_step(settings).wall < 1
