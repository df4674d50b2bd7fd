"""Agents that several algorithms have: functions of the spaces and of an algorithm's config.

An algorithm names one of these as its `agent`, or calls them in a function of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gymnasium.spaces import Box, Discrete, Space
from torch import nn

from raceway.agents.agent import ActorCritic, Agent, QAgent, Spaces
from raceway.agents.batch_renorm import NormalisedActor, NormalisedCritics
from raceway.agents.critics import CriticList, DiscreteCriticList, value_network
from raceway.agents.distributions import (
    Bounded,
    Deterministic,
    Direct,
    Distribution,
    SquashedGaussian,
    distribution_for,
)
from raceway.agents.network_choice import RECURRENT, custom_networks, network_for
from raceway.agents.networks import Encoder, actor_critic_networks, hidden_layers
from raceway.agents.policy import Policy, seeded_weights
from raceway.agents.q_ensembles import DiscreteQEnsemble, QEnsemble
from raceway.agents.q_heads import Dueling
from raceway.agents.recurrent import RecurrentNetwork
from raceway.agents.soft_actor_critic import DiscreteSoftActorCritic, SoftActorCritic
from raceway.agents.temperature import Temperature
from raceway.autograd.layers import Layers
from raceway.errors import ConfigError
from raceway.rl import network_obs_space

_CUSTOM = "the networks are your own"

MakeAgent = Callable[[Spaces, Any], Agent]
"""Makes the untrained agent of an algorithm, from the spaces and the algorithm's config."""


def build_agent(make: MakeAgent, spaces: Spaces, cfg: Any, seed: int | None = 0) -> Agent:
    """Return an untrained agent. The same seed gives the same weights; torch's global generator is not changed."""
    with seeded_weights(seed):
        return make(spaces, cfg)


def actor(spaces: Spaces, cfg: Any, *, layer_norm: bool = False) -> Agent:
    """Return an agent that only acts, with the settings `network` and `hidden`; see `network_for`."""
    obs_space, _ = network_obs_space(spaces.observation)
    network = network_for(obs_space, spaces.action, cfg.network, cfg.hidden or (), layer_norm=layer_norm)
    policy = Policy(*spaces, network)
    if not isinstance(cfg.network, str):
        policy.unused_settings = _unused(cfg, _CUSTOM, "hidden")
    return Agent(policy)


def deterministic_actor(spaces: Spaces, cfg: Any, *, linear: bool = False) -> Agent:
    """Return an agent that takes one action for an observation, for weights that are not trained by gradients.

    Actions of a Box are the network's outputs as they are.

    Args:
        spaces: the spaces of the environment.
        cfg: the settings `network`, `hidden` and `normalise_obs`.
        linear: whether a network without hidden layers is a matrix of zeros, without a bias.
    """
    obs_space, _ = network_obs_space(spaces.observation)
    if cfg.network in RECURRENT:  # which is refused later, with advice
        return Agent(Policy(*spaces, network_for(obs_space, spaces.action, cfg.network, cfg.hidden or ())))
    box = isinstance(spaces.action, Box)
    distribution: Distribution = Direct(spaces.action.shape or ()) if box else distribution_for(spaces.action)
    if not isinstance(cfg.network, str):
        network = network_for(obs_space, spaces.action, cfg.network, ())
        unused = _unused(cfg, _CUSTOM, "hidden", "normalise_obs")
    else:
        hidden, encoder = cfg.hidden or (), Encoder(obs_space, cfg.normalise_obs)
        layers, size = hidden_layers(encoder, hidden, nn.Tanh)
        head = nn.Linear(size, distribution.size, bias=bool(hidden) or not linear)
        if linear and not hidden:
            nn.init.zeros_(head.weight)
        network, reason = Layers(*layers, head), f"observations of {obs_space} have no numbers to normalise"
        unused = {} if encoder.normalises else _unused(cfg, reason, "normalise_obs")
    policy = Policy(*spaces, network, distribution)
    reason = "there is no loss whose gradient would be computed"
    policy.unused_settings = {**unused, "learner_threads": reason, "compile_losses": reason}
    return Agent(policy)


def actor_critic(spaces: Spaces, cfg: Any) -> ActorCritic:
    """Return a policy and a critic, with the settings of `ActorCriticConfig`."""
    obs_space, _ = network_obs_space(spaces.observation)
    if not isinstance(cfg.network, str):
        return _custom_actor_critic(spaces, cfg, obs_space)
    network: nn.Module
    critic: nn.Module
    if cfg.network in RECURRENT:
        encoder = Encoder(obs_space, cfg.normalise_obs)
        network = recurrent = RecurrentNetwork(obs_space, spaces.action, cfg.hidden or (), cfg.network, encoder)
        critic = nn.Linear(recurrent.cell.hidden_size, 1)
        reason = f"{cfg.network} has tanh layers, which the critic shares"
        unused = _unused(cfg, reason, "activation", "shared_layers")
    else:
        options = {"normalise": cfg.normalise_obs, "activation": cfg.activation, "shared": cfg.shared_layers}
        network, critic = actor_critic_networks(obs_space, spaces.action, cfg.hidden or (), **options)
        encoder, unused = network[0], {}  # type: ignore[assignment]
    if not encoder.normalises:
        unused |= _unused(cfg, f"observations of {obs_space} have no numbers to normalise", "normalise_obs")
    policy = Policy(*spaces, network)
    policy.unused_settings = unused
    return ActorCritic(policy, critic)


def _custom_actor_critic(spaces: Spaces, cfg: Any, obs_space: Space) -> ActorCritic:
    """Return the networks of a user's function, with the built-in critic if it returns an actor alone."""
    network, *critics = custom_networks(obs_space, spaces.action, cfg.network, max_critics=1)
    policy = Policy(*spaces, network)
    if critics:
        policy.unused_settings = _unused(cfg, _CUSTOM, "hidden", "activation", "shared_layers", "normalise_obs")
        return ActorCritic(policy, critics[0])
    reason = "the network of your own gets observations as they are, and shares nothing with the critic"
    policy.unused_settings = _unused(cfg, reason, "shared_layers", "normalise_obs")
    return ActorCritic(policy, value_network(obs_space, cfg.hidden or (), cfg.activation))


def _unused(cfg: Any, reason: str, *names: str) -> dict[str, str]:
    """Return the reason why settings have no effect, for those that ask for something."""
    return {name: reason for name in names if getattr(cfg, name, None)}


def squashed_actor_and_critics(
    spaces: Spaces, cfg: Any, num: int = 2, num_quantiles: int | None = None, **regularisation: Any
) -> tuple[Policy, nn.Module]:
    """Return a squashed Gaussian policy, and critics; see `actor_and_critics`."""
    return actor_and_critics(spaces, cfg, SquashedGaussian(spaces.action), num, num_quantiles, **regularisation)


def deterministic_actor_and_critics(
    spaces: Spaces, cfg: Any, num: int = 2, *, normalise: bool = False
) -> tuple[Policy, nn.Module]:
    """Return a deterministic policy, and critics; see `actor_and_critics`."""
    return actor_and_critics(spaces, cfg, Deterministic(spaces.action), num, normalise=normalise)


def actor_and_critics(
    spaces: Spaces,
    cfg: Any,
    distribution: Bounded,
    num: int = 2,
    num_quantiles: int | None = None,
    *,
    normalise: bool = False,
    **regularisation: Any,
) -> tuple[Policy, nn.Module]:
    """Return a policy of continuous actions, and critics Q(s, a), from (obs, action) to [E, N] or [E, N, K].

    Args:
        spaces: the spaces.
        cfg: the settings `network` and `hidden`.
        distribution: the distribution of actions.
        num: the number of critics, unless a user's function returns others, of which there may be one if this is 1.
        num_quantiles: the number K of quantiles of the return that each critic estimates; None for its mean.
        normalise: whether built-in networks normalise observations, by statistics that the agent has to observe.
        regularisation: `layer_norm` and `dropout` of the critics; see `QEnsemble`.
    """
    obs_space, _ = network_obs_space(spaces.observation)
    hidden = cfg.hidden or ()
    if isinstance(cfg.network, str):
        # Of the built-in networks, the one for discrete actions has a head without deviations of its own.
        network = network_for(obs_space, Discrete(distribution.head_size), cfg.network, hidden, normalise=normalise)
        policy = Policy(*spaces, network, distribution)
        critics = QEnsemble(
            obs_space, spaces.action, hidden, num, num_quantiles=num_quantiles, normalise=normalise, **regularisation
        )
        if normalise and not critics.encoder.normalises:
            reason = f"observations of {obs_space} have no numbers to normalise"
            policy.unused_settings = _unused(cfg, reason, "normalise_obs")
        return policy, critics
    # An algorithm with one critic would not train others.
    max_critics = 1 if num == 1 else 16
    network, *own_critics = custom_networks(obs_space, spaces.action, cfg.network, max_critics=max_critics)
    policy = Policy(*spaces, network, distribution)
    policy.unused_settings = _unused(cfg, "the network of your own gets observations as they are", "normalise_obs")
    if not own_critics:
        options = {"num_quantiles": num_quantiles, "flatten_small_images": True, **regularisation}
        return policy, QEnsemble(obs_space, spaces.action, hidden, num, **options)
    if num_quantiles is not None:
        raise ConfigError(
            "critics of your own have one output, and this algorithm needs quantiles. Return the actor alone."
        )
    if regularisation:
        raise ConfigError(
            f"critics of your own would be without the {' and '.join(regularisation)} of this algorithm. Return the "
            "actor alone."
        )
    policy.unused_settings = {**policy.unused_settings, **_unused(cfg, _CUSTOM, "hidden")}
    return policy, CriticList(obs_space, spaces.action, own_critics)


def normalised_actor_and_critics(spaces: Spaces, cfg: Any) -> tuple[Policy, NormalisedCritics]:
    """Return a squashed Gaussian policy, and two critics Q(s, a), all with batch renormalisation.

    Args:
        spaces: the spaces.
        cfg: the settings `network`, `hidden` and `critic_hidden`.
    """
    obs_space, _ = network_obs_space(spaces.observation)
    distribution, own = SquashedGaussian(spaces.action), not isinstance(cfg.network, str)
    if own:
        network, *critics = custom_networks(obs_space, spaces.action, cfg.network, max_critics=16)
        if critics:
            raise ConfigError(
                "critics of your own would be without the batch normalisation of this algorithm. Return the actor "
                "alone."
            )
    elif cfg.network in RECURRENT:
        network = network_for(obs_space, Discrete(distribution.size), cfg.network, cfg.hidden or ())
    else:
        network = NormalisedActor(obs_space, cfg.hidden or (), distribution.size)
    policy = Policy(*spaces, network, distribution)
    unused = _unused(cfg, _CUSTOM, "hidden") if own else {}
    policy.unused_settings = unused | _unused(cfg, "it has no target networks", "tau", "target_every")
    return policy, NormalisedCritics(obs_space, spaces.action, cfg.critic_hidden or (), flatten_small_images=own)


def discrete_actor_and_critics(spaces: Spaces, cfg: Any, num: int = 2) -> tuple[Policy, nn.Module]:
    """Return a policy of discrete actions, and critics Q(s, ·), from obs to [E, N, num_actions].

    Args:
        spaces: the spaces.
        cfg: the settings `network` and `hidden`.
        num: the number of critics, unless a user's function returns others.
    """
    obs_space, _ = network_obs_space(spaces.observation)
    hidden, num_actions = cfg.hidden or (), int(spaces.action.n)  # type: ignore[attr-defined]
    if isinstance(cfg.network, str):
        policy = Policy(*spaces, network_for(obs_space, spaces.action, cfg.network, hidden))
        return policy, DiscreteQEnsemble(obs_space, num_actions, hidden, num)
    network, *critics = custom_networks(obs_space, spaces.action, cfg.network, max_critics=16)
    policy = Policy(*spaces, network)
    if not critics:
        return policy, DiscreteQEnsemble(obs_space, num_actions, hidden, num, flatten_small_images=True)
    policy.unused_settings = _unused(cfg, _CUSTOM, "hidden")
    return policy, DiscreteCriticList(obs_space, num_actions, critics)


def soft_actor_critic(spaces: Spaces, cfg: Any) -> SoftActorCritic | DiscreteSoftActorCritic:
    """Return a policy, two critics and the temperature, for continuous or discrete actions.

    Args:
        spaces: the spaces.
        cfg: the settings `network`, `hidden`, `initial_temperature` and `target_entropy`.
    """
    temperature = Temperature(cfg.initial_temperature, spaces.action, cfg.target_entropy)
    if isinstance(spaces.action, Discrete):
        actor, critics = discrete_actor_and_critics(spaces, cfg)
        return DiscreteSoftActorCritic(actor, critics=critics, temperature=temperature)
    actor, critics = squashed_actor_and_critics(spaces, cfg)
    return SoftActorCritic(actor, critics=critics, temperature=temperature)


def q_network(spaces: Spaces, cfg: Any, *, layer_norm: bool = False) -> QAgent:
    """Return an agent whose actor's outputs are the Q-values of discrete actions; see `network_for`."""
    if not isinstance(spaces.action, Discrete):
        raise ConfigError(f"a Q-network needs discrete actions (Discrete), not {spaces.action}")
    policy = actor(spaces, cfg, layer_norm=layer_norm).actor
    if not policy.recurrent:
        unused = _unused(cfg, "it has no memory, so replay has no sequences", "sequence_steps", "burn_in")
        policy.unused_settings = {**policy.unused_settings, **unused}
    return QAgent(policy)


def dueling_recurrent_network(spaces: Spaces, cfg: Any) -> QAgent:
    """Return an agent with a recurrent Q-network and a dueling head; a user's recurrent network has its own head."""
    obs_space, _ = network_obs_space(spaces.observation)
    if not isinstance(spaces.action, Discrete):
        raise ConfigError(f"a Q-network needs discrete actions (Discrete), not {spaces.action}")
    network: nn.Module
    if cfg.network in RECURRENT:
        make_head = partial(Dueling, num_actions=int(spaces.action.n), width=None)
        network = RecurrentNetwork(obs_space, spaces.action, cfg.hidden or (), cfg.network, make_head=make_head)
    else:
        network = network_for(obs_space, spaces.action, cfg.network, cfg.hidden or ())
    policy = Policy(*spaces, network)
    if not policy.recurrent:
        raise ConfigError(
            "this algorithm trains on sequences, with a recurrent network. Use --network lstm or gru, a network of "
            "your own with initial_state(num), or for a feed-forward one the algorithm apex."
        )
    if not isinstance(cfg.network, str):
        policy.unused_settings = _unused(cfg, _CUSTOM, "hidden")
    return QAgent(policy)
