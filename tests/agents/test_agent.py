"""Agents: named parts, target networks, and what is sent and saved of them."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from raceway.agents import ActorCritic, Agent, Spaces, build_agent, make_policy
from raceway.agents.builders import q_network
from raceway.errors import ConfigError
from tests.example_agents import agent_settings, example_actor, example_actor_critic

OBS = spaces.Box(-1, 1, (3,))
DISCRETE, BOX = spaces.Discrete(2), spaces.Box(-1, 1, (2,))
ROWS = torch.ones(5, 3)
COPIES = pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent)), lambda a: cloudpickle.loads(cloudpickle.dumps(a))],
    ids=["deepcopy", "pickle", "cloudpickle"],
)


class TwoCritics(Agent):
    """An agent with two critics, which share their first layer, and a parameter of its own."""

    def __init__(self) -> None:
        first = nn.Linear(3, 4)
        critics = [nn.Sequential(first, nn.Tanh(), nn.Linear(4, 1)) for _ in range(2)]
        super().__init__(make_policy(OBS, DISCRETE, hidden=(4,), seed=0), critic=critics[0], second_critic=critics[1])
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.statistics = nn.BatchNorm1d(3)


def two_critics() -> TwoCritics:
    agent = build_agent(lambda *_: TwoCritics(), Spaces(OBS, DISCRETE), None)
    assert isinstance(agent, TwoCritics)
    return agent


# Parts.


def test_parts_have_their_names_in_the_weights() -> None:
    agent = two_critics()
    assert {name.partition(".")[0] for name in agent.weights()} == {
        "actor", "critic", "second_critic", "log_alpha", "statistics"
    }  # fmt: skip
    assert set(agent.weights(["critic"])) == {name for name in agent.weights() if name.startswith("critic.")}
    assert set(agent.weights(["actor"])) == {f"actor.{name}" for name in agent.actor.weights()}


def test_the_parameters_of_parts() -> None:
    agent = two_critics()
    assert list(agent.parameters_of(["critic"])) == list(agent.get_submodule("critic").parameters())
    assert list(agent.parameters_of(None)) == list(agent.parameters())
    assert len(list(agent.parameters_of(["actor", "critic"]))) == 4 + 4


@pytest.mark.parametrize("use", [Agent.check_part, lambda agent, name: list(agent.parameters_of([name]))])
def test_an_unknown_part_is_refused_with_a_suggestion(use: Callable[[Agent, str], Any]) -> None:
    with pytest.raises(ConfigError, match=r"unknown part of the agent 'crtic'. Did you mean 'critic'\?"):
        use(two_critics(), "crtic")


def test_workers_get_the_parts_that_they_need() -> None:
    assert example_actor(OBS, DISCRETE).worker_parts == ("actor",)
    assert example_actor_critic(OBS, DISCRETE).worker_parts is None  # they compute advantages


def test_a_part_of_the_weights_can_be_loaded() -> None:
    agent, other = example_actor(OBS, DISCRETE, seed=1), example_actor_critic(OBS, DISCRETE, seed=2)
    before = copy.deepcopy(other)
    other.load(agent.weights())
    assert other.actor.sha256() == agent.actor.sha256() != before.actor.sha256()
    for parameter, old in zip(other.critic.parameters(), before.critic.parameters(), strict=True):
        assert torch.equal(parameter, old)
    with pytest.raises(ConfigError, match=r"unknown weight 'critic\.1\.weight'"):
        agent.load(other.weights(["critic"]))


@pytest.mark.parametrize("settings", [{}, {"shared_layers": True}, {"normalise_obs": True}], ids=str)
@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=str)
def test_an_actor_critic_evaluates_as_its_parts_do(action_space: spaces.Space, settings: dict[str, Any]) -> None:
    agent = example_actor_critic(OBS, action_space, **settings)
    agent.observe({"obs": 3 + torch.randn(50, 3, generator=torch.Generator().manual_seed(0))})
    params, values = agent.evaluate({"obs": ROWS})
    torch.testing.assert_close(params, agent.actor(ROWS, {})[0])
    torch.testing.assert_close(values, agent.values(ROWS))
    assert values.shape == (5,)


def test_an_actor_critic_observes_returns_only_if_rewards_are_scaled() -> None:
    agent = example_actor_critic(OBS, DISCRETE)
    agent.observe({"obs": ROWS})
    assert float(agent.rewards.count) == 0
    agent.observe({"obs": ROWS, "running_return": torch.tensor([1.0, 3.0])})
    assert (float(agent.rewards.count), float(agent.rewards.mean)) == (2, 2)


def test_q_values_need_discrete_actions() -> None:
    with pytest.raises(ConfigError, match=r"a Q-network needs discrete actions \(Discrete\), not Box"):
        build_agent(q_network, Spaces(OBS, BOX), agent_settings())


def test_a_users_networks_have_the_same_weights_with_and_without_a_critic_of_their_own() -> None:
    """The initial weights of a network depend on what was made before it."""

    def actor_only(*_: Any) -> nn.Module:
        return nn.Linear(3, 2)

    def actor_and_critic(*_: Any) -> tuple[nn.Module, nn.Module]:
        return nn.Linear(3, 2), nn.Linear(3, 1)

    alone, both = (example_actor_critic(OBS, DISCRETE, network) for network in (actor_only, actor_and_critic))
    assert alone.actor.sha256() == both.actor.sha256()


def test_the_same_seed_gives_the_same_agent() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (example_actor_critic(OBS, DISCRETE, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.sha256() == again.sha256() != other.sha256()


# Target networks.


def test_an_agent_without_targets_says_how_to_get_them() -> None:
    agent = two_critics()
    assert not agent.has_target
    with pytest.raises(ConfigError, match=r"has no target networks. Pass targets=Target\(\.\.\.\) to TrainOneStep"):
        _ = agent.target


@pytest.mark.parametrize("parts", [None, ["critic", "second_critic"], ["actor"]], ids=str)
def test_a_target_is_an_untrained_copy_of_the_parts(parts: list[str] | None) -> None:
    agent = two_critics()
    agent.make_target(parts)
    target = agent.target
    names = parts or ["actor", "critic", "second_critic", "statistics"]
    assert type(target) is TwoCritics
    assert list(target._modules) == names
    assert not target.has_target
    for name in names:
        pairs = zip(target.parameters_of([name]), agent.parameters_of([name]), strict=True)
        for own, trained in pairs:
            assert torch.equal(own, trained)
            assert own.data_ptr() != trained.data_ptr()
            assert (own.requires_grad, trained.requires_grad) == (False, True)


def test_what_a_target_copies_is_trained_no_less() -> None:
    """Also a parameter that is no part: the target has none of it, and it is not frozen."""
    agent = two_critics()
    agent.make_target(None)
    assert all(parameter.requires_grad for parameter in agent.parameters())
    assert "log_alpha" not in agent.target.weights()
    assert dict(agent.named_parameters())["log_alpha"] is agent.log_alpha


def test_shared_layers_stay_shared_in_the_target() -> None:
    agent = two_critics()
    agent.make_target(["critic", "second_critic"])
    first, second = (agent.target.get_submodule(name) for name in ("critic", "second_critic"))
    assert first[0] is second[0]  # type: ignore[index]
    assert first[0] is not agent.get_submodule("critic")[0]  # type: ignore[index]
    assert len(list(agent.target.parameters())) == 6
    shared = example_actor_critic(OBS, DISCRETE)
    shared.make_target(None)
    assert shared.target.critic[0] is shared.target.actor.network[0]  # type: ignore[index,union-attr]
    torch.testing.assert_close(shared.target.evaluate({"obs": ROWS}), shared.evaluate({"obs": ROWS}))


def test_the_target_is_no_part_of_the_weights() -> None:
    agent = two_critics()
    before = agent.sha256(), list(agent.state_dict()), len(list(agent.parameters())), list(agent.weights())
    agent.make_target(None)
    with torch.no_grad():
        next(agent.target.parameters()).fill_(7)
    after = agent.sha256(), list(agent.state_dict()), len(list(agent.parameters())), list(agent.weights())
    assert after == before


@COPIES
def test_copies_keep_the_target(copied: Callable[[TwoCritics], TwoCritics]) -> None:
    agent = two_critics()
    agent.make_target(None)
    with torch.no_grad():
        for parameter in agent.target.parameters():
            parameter += 1
    other = copied(agent)
    assert other.target.sha256() == agent.target.sha256() != agent.sha256()
    assert not any(parameter.requires_grad for parameter in other.target.parameters())
    first, second = (other.target.get_submodule(name) for name in ("critic", "second_critic"))
    assert first[0] is second[0]  # type: ignore[index]
    with torch.no_grad():
        next(agent.target.parameters()).fill_(7)
    assert other.target.sha256() != agent.target.sha256(), "a copy has a target of its own"


@pytest.mark.parametrize("parts", [["gone"], ["actor", "gone"]])
def test_a_target_of_an_unknown_part_is_refused(parts: list[str]) -> None:
    with pytest.raises(ConfigError, match="unknown part of the agent 'gone'"):
        two_critics().make_target(parts)


def test_a_target_acts_with_its_own_weights() -> None:
    agent = example_actor(OBS, DISCRETE)
    assert not isinstance(agent, ActorCritic)
    agent.make_target(None)
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    before = agent.actor.act(obs, {}, None)[0]
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.neg_()
    np.testing.assert_array_equal(agent.target.actor.act(obs, {}, None)[0], before)
    assert (agent.actor.act(obs, {}, None)[0] != before).any()
