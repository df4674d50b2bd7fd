"""Small agents for tests, and functions that make them in workers."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from gymnasium import spaces

from raceway.agents import ActorCritic, Agent, Spaces, build_agent
from raceway.agents.builders import actor, actor_critic
from raceway.algorithms.registry import MadeWith


def agent_settings(network: Any = "mlp", hidden: Sequence[int] = (8,), **settings: Any) -> SimpleNamespace:
    """Return the settings that agents are made with."""
    defaults = {"activation": None, "normalise_obs": False, "shared_layers": False}
    return SimpleNamespace(network=network, hidden=tuple(hidden), **{**defaults, **settings})


def makes_actor(network: Any = "mlp", hidden: Sequence[int] = (8,)) -> MadeWith:
    """Return the function of the spaces that makes an agent with a policy only."""
    return MadeWith(actor, agent_settings(network, hidden))


def makes_actor_critic(network: Any = "mlp", hidden: Sequence[int] = (8,), **settings: Any) -> MadeWith:
    """Return the function of the spaces that makes an actor-critic."""
    return MadeWith(actor_critic, agent_settings(network, hidden, **settings))


def example_actor(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    network: Any = "mlp",
    hidden: Sequence[int] = (8,),
    seed: int | None = 0,
) -> Agent:
    """Return an agent with a policy only."""
    return build_agent(actor, Spaces(observation_space, action_space), agent_settings(network, hidden), seed)


def example_actor_critic(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    network: Any = "mlp",
    hidden: Sequence[int] = (8,),
    seed: int | None = 0,
    **settings: Any,
) -> ActorCritic:
    """Return an actor-critic."""
    cfg = agent_settings(network, hidden, **settings)
    agent = build_agent(actor_critic, Spaces(observation_space, action_space), cfg, seed)
    assert isinstance(agent, ActorCritic)
    return agent
