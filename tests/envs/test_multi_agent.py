"""The names of multi-agent environments, parallel and turn-based."""

import pytest
from pettingzoo import AECEnv, ParallelEnv

from raceway.envs.multi_agent import MultiAgentSettings, is_turn_based
from raceway.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "turn_based"),
    [
        ("pettingzoo:mpe2.simple_spread_v3", False),
        ("mpe2.simple_spread_v3", False),
        ("mpe2.simple_spread_v3:parallel_env", False),
        ("mpe2.simple_spread_v3:env", True),
        ("pettingzoo:pettingzoo.classic.tictactoe_v3", True),
        ("pettingzoo.classic.tictactoe_v3:env", True),
        ("pettingzoo:pettingzoo.classic.rps_v2", False),  # it has both
        ("pettingzoo:pettingzoo.classic.rps_v2:env", True),
    ],
)
def test_names(name: str, turn_based: bool) -> None:
    settings = MultiAgentSettings(name, lambda agent: agent)
    env = settings.make()
    assert is_turn_based(env) == settings.is_turn_based() == turn_based
    assert isinstance(env, AECEnv if turn_based else ParallelEnv)
    env.close()


def test_functions_and_their_arguments() -> None:
    from pettingzoo.classic.rps import rps

    env = MultiAgentSettings(rps.env, lambda agent: agent, {"num_actions": 5}).make()
    assert env.action_space("player_0").n == 5
    env.close()


def test_errors_say_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"no_such_module.*raceway\[pettingzoo\]"):
        MultiAgentSettings("pettingzoo:no_such_module", {}).make()
    with pytest.raises(ConfigError, match="names no module"):
        MultiAgentSettings("pettingzoo:", {}).make()
    with pytest.raises(ConfigError, match="has neither a parallel_env nor an env"):
        MultiAgentSettings("json", {}).make()
    with pytest.raises(ConfigError, match=r"has no no_such_function. Give module:function"):
        MultiAgentSettings("json:no_such_function", {}).make()
    with pytest.raises(ConfigError, match="it has no possible_agents"):
        MultiAgentSettings(dict, {}).make()
    with pytest.raises(ConfigError, match="turn-based, and global_state is for parallel"):
        MultiAgentSettings("pettingzoo.classic.tictactoe_v3", {}, global_state=True).make()
