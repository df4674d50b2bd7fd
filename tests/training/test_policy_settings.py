"""Which policies agents have: by default, from mappings and from files, and what is wrong with them."""

from pathlib import Path
from typing import Any

import pytest

from raceway.algorithms import find_algorithm
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import ConfigError
from raceway.training.policy_settings import PolicySettings, read_policies
from raceway.training.train import train

TAG, SPREAD = "pettingzoo:mpe2.simple_tag_v3", "pettingzoo:mpe2.simple_spread_v3"


def read(choice: Any, env: str = SPREAD, algorithm: str = "ppo") -> dict[str, PolicySettings]:
    return read_policies(choice, find_algorithm(algorithm), MultiAgentSettings(env, {}))


def agents(policies: dict[str, PolicySettings]) -> dict[str, list[str]]:
    return {name: list(policy.agents) for name, policy in policies.items()}


def test_agents_with_equal_spaces_share_a_policy_by_default() -> None:
    assert agents(read(None)) == agents(read("shared")) == {"agent": ["agent_0", "agent_1", "agent_2"]}
    adversaries = ["adversary_0", "adversary_1", "adversary_2"]
    assert agents(read("shared", TAG)) == {"adversary": adversaries, "agent": ["agent_0"]}
    assert agents(read("per-agent", TAG)) == {name: [name] for name in [*adversaries, "agent_0"]}


TOML = """
[pair]
agents = ["agent_0", "agent_1"]
hidden = [8, 8]

[single]
agents = "agent_2"
algorithm = "dqn"
n_step = 3
"""
YAML = """
pair: {agents: [agent_0, agent_1], hidden: [8, 8]}
single:
  agents: agent_2
  algorithm: dqn
  n_step: 3
"""
JSON = """{
  "pair": {"agents": ["agent_[01]"], "hidden": [8, 8]},
  "single": {"agents": ["agent_2"], "algorithm": "dqn", "n_step": 3}
}"""


@pytest.mark.parametrize(("suffix", "text"), [("toml", TOML), ("yaml", YAML), ("json", JSON)])
def test_files_name_agents_algorithms_and_settings(tmp_path: Path, suffix: str, text: str) -> None:
    file = tmp_path / f"policies.{suffix}"
    file.write_text(text)
    policies = read(file)
    assert agents(policies) == {"pair": ["agent_0", "agent_1"], "single": ["agent_2"]}
    assert [policy.algorithm.name for policy in policies.values()] == ["ppo", "dqn"]
    assert policies["pair"].settings == {"hidden": (8, 8)}
    assert policies["single"].settings == {"n_step": 3}


WRONG = {
    "n_step = 3": ("n_stpe = 3", 9, "unknown setting of dqn 'n_stpe'. Did you mean 'n_step'"),
    "agent_2": ("agnet_2", 7, "unknown agent 'agnet_2'. Did you mean 'agent_2'"),
    'agents = "agent_2"': ("", 6, "it has no agents"),
    'algorithm = "dqn"': ('algorithm = "dnq"', 8, "unknown algorithm 'dnq'. Did you mean 'dqn'"),
    "algorithm": ("algorithms", 8, "Did you mean 'algorithm'"),
    "hidden = [8, 8]": ("seed = 3", 4, "seed is the same for all policies. Set it for the run: --seed"),
    "[8, 8]": ('"wide"', 4, "hidden must be"),
    '"agent_1"': ('"agent_2"', 7, "agent_2 has the policy 'pair' already"),
    '"dqn"\nn_step = 3': ('"td3"', 8, "td3 is for box actions, and agent_2 of"),
    'algorithm = "dqn"\nn_step = 3': ('algorithm = "bc"', 8, "bc does not learn from rollouts"),
    "[single]": ("[agent_0]", 6, "it has the name of an agent with another policy"),
    "[pair]": ('["a/b"]', 2, "its name has characters other than"),
}


@pytest.mark.parametrize("old", WRONG)
def test_mistakes_in_files_are_named_with_their_line(tmp_path: Path, old: str) -> None:
    new, line, message = WRONG[old]
    file = tmp_path / "policies.toml"
    file.write_text(TOML.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}, line {line}: policy ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"pair": {"agents": ["agent_0", "agent_1"]}}, "agent_2 of pettingzoo:mpe2.simple_spread_v3 has no policy"),
        ({"all": {"agents": "*", "lr": -1}}, "policies: policy 'all': lr must be"),
        ({"all": ["agent_0"]}, r"not a table"),
        ({}, "policies has none"),
        ("per_agents", "Did you mean 'per-agent'"),
    ],
)
def test_mistakes_in_mappings_are_named(choice: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(choice)


def test_agents_with_different_spaces_cannot_share_a_policy() -> None:
    with pytest.raises(ConfigError, match=r"adversary_0 and agent_0 have different spaces.*Give each its own policy"):
        read({"all": {"agents": "*"}}, TAG)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "cartpole", "policies": "shared"}, "policies are for environments with several agents"),
        ({"env": SPREAD, "vector": "native"}, "several agents have no vectors"),
        ({"env": SPREAD, "lr": 0.1, "policies": {"all": {"agents": "*", "algorithm": "dqn"}}}, "lr has no effect"),
        ({"env": "pettingzoo:mpe2.simple_spred_v3"}, "No module named"),
        ({"env": SPREAD, "env_kwargs": {"agents": 3}}, "cannot be created with"),
    ],
)
def test_settings_that_do_not_fit_several_agents_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train("ppo", **settings, progress=False)
