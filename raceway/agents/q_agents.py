"""Agents for the values of discrete actions whose networks end in one of the heads of `q_heads`.

The acting network returns Q-values, so that exploration, evaluation and export are those of any Q-network; a loss asks
the agent for what they are the expected values of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.spaces import Discrete
from torch import Tensor, nn

from raceway.agents.agent import Agent, Spaces
from raceway.agents.network_checks import GUIDE, NUM_ROWS, example_rows, try_network
from raceway.agents.network_choice import RECURRENT, custom_networks, network_for
from raceway.agents.networks import Encoder, mlp
from raceway.agents.policy import Policy
from raceway.agents.q_heads import ImplicitQuantiles, Readout
from raceway.autograd.layers import Layers
from raceway.errors import ConfigError
from raceway.rl import network_obs_space


class DistributionalAgent(Agent):
    """An agent whose network estimates the distribution of the return of every action, and ends in a `Readout`."""

    @property
    def readout(self) -> Any:
        """The last module of the network."""
        return self.actor.network[-1]  # type: ignore[index]

    def distributions(self, obs: Any) -> Tensor:
        """Return what the network estimates of every action, [N, num_actions, num_each]."""
        return self.readout.by_action(self.actor.network.features(self.actor.network_obs(obs)))  # type: ignore[operator]

    def expected(self, distributions: Tensor, obs: Any) -> Tensor:
        """Return the Q-values, [N, num_actions], of distributions; those of masked actions are very low."""
        return self.actor.apply_mask(self.readout.expected(distributions), obs)


class ImplicitQuantileAgent(Agent):
    """An agent whose network estimates quantiles of the return at any fractions, and ends in `ImplicitQuantiles`."""

    @property
    def head(self) -> ImplicitQuantiles:
        """The last module of the network."""
        return self.actor.network[-1]  # type: ignore[index]

    def features(self, obs: Any) -> Tensor:
        """Return the features ψ(s) of observations, [N, size]."""
        return self.actor.network.features(self.actor.network_obs(obs))  # type: ignore[operator]

    def expected(self, features: Tensor, fractions: Tensor, obs: Any) -> Tensor:
        """Return the means of the quantiles at fractions, [N, M]: Q-values, [N, num_actions]; low if masked."""
        return self.actor.apply_mask(self.head.expected(features, fractions), obs)


def num_actions(spaces: Spaces) -> int:
    """Return the number of actions of a Discrete space."""
    if not isinstance(spaces.action, Discrete):
        raise ConfigError(f"a Q-network needs discrete actions (Discrete), not {spaces.action}")
    return int(spaces.action.n)


def distributional_policy(spaces: Spaces, cfg: Any, readout: Readout) -> Policy:
    """Return a policy whose network has `num_each` outputs for every action, and then the readout."""
    if _is_recurrent(cfg):
        return _recurrent_policy(spaces, cfg)
    obs_space, _ = network_obs_space(spaces.observation)
    num = readout.num_actions * readout.num_each
    if isinstance(cfg.network, str):
        return Policy(*spaces, Layers(*mlp(obs_space, Discrete(num), cfg.hidden or ()), readout))
    policy = Policy(*spaces, Layers(_custom(obs_space, cfg.network, num), readout))
    if cfg.hidden:
        policy.unused_settings = {"hidden": "the networks are your own"}
    return policy


def headed_policy(spaces: Spaces, cfg: Any, trunk: Layers, *head: nn.Module) -> Policy:
    """Return a policy whose network is a trunk, from `feature_layers`, and then a head."""
    return _recurrent_policy(spaces, cfg) if _is_recurrent(cfg) else Policy(*spaces, Layers(*trunk, *head))


def feature_layers(spaces: Spaces, cfg: Any, hidden: Sequence[int], own_width: int | None) -> tuple[Layers, int]:
    """Return the layers below a head, and the number of features that they return.

    Args:
        spaces: the spaces.
        cfg: the setting `network`.
        hidden: the widths of the layers; without any, the features are the encoded observations.
        own_width: the number of outputs that a user's network is asked for, to which ReLU is applied.
    """
    obs_space, _ = network_obs_space(spaces.observation)
    if isinstance(cfg.network, str):
        if not hidden:
            encoder = Encoder(obs_space)
            return Layers(encoder), encoder.size
        return Layers(*mlp(obs_space, Discrete(hidden[-1]), hidden[:-1]), nn.ReLU()), hidden[-1]
    if own_width is None:
        raise ConfigError("how many features the network of your own returns is the last width of --hidden. Set it.")
    return Layers(_custom(obs_space, cfg.network, own_width), nn.ReLU()), own_width


def _custom(obs_space: Any, network: Any, num: int) -> nn.Module:
    """Return a user's network that returns `num` outputs, which it is asked for by a Discrete space of that size."""
    (module,) = custom_networks(obs_space, Discrete(num), network)
    if hasattr(module, "initial_state"):
        raise ConfigError(
            "the network of the part 'actor' has initial_state, and this algorithm trains feed-forward networks only. "
            "Use dqn or double_dqn for a recurrent one."
        )
    shape = try_network("actor", module, module, example_rows(obs_space))
    if shape != (NUM_ROWS, num):
        raise ConfigError(
            f"the network of the part 'actor' returned {shape} for {NUM_ROWS} observations, and this algorithm needs "
            f"{(NUM_ROWS, num)}. The function gets a Discrete({num}): return action_space.n outputs; see {GUIDE}."
        )
    return module


def _is_recurrent(cfg: Any) -> bool:
    return isinstance(cfg.network, str) and cfg.network in RECURRENT


def _recurrent_policy(spaces: Spaces, cfg: Any) -> Policy:
    """Return a policy that the registry refuses, with the names of algorithms that can train it."""
    obs_space, _ = network_obs_space(spaces.observation)
    return Policy(*spaces, network_for(obs_space, spaces.action, cfg.network, cfg.hidden or ()))
