"""The choice of a network: a built-in one by its name, or a user's function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gymnasium import spaces
from torch import nn

from raceway.agents.networks import Encoder, mlp
from raceway.agents.recurrent import RecurrentNetwork
from raceway.checks import check_choice
from raceway.errors import ConfigError

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "lstm": partial(RecurrentNetwork, kind="lstm"),
    "gru": partial(RecurrentNetwork, kind="gru"),
}
"""The built-in networks, by name."""
RECURRENT = ("lstm", "gru")
"""Names of the built-in networks that are recurrent."""


def network_for(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    network: Any,
    hidden: Sequence[int],
    *,
    layer_norm: bool = False,
    normalise: bool = False,
) -> nn.Module:
    """Make a network: one of `NETWORKS`, or by a user's `function(observation_space, action_space)`.

    Args:
        observation_space: the space of the observations that the network sees.
        action_space: the action space.
        network: the name of a network, or the function.
        hidden: the widths of the hidden layers.
        layer_norm: whether the feed-forward network normalises the inputs of its activations.
        normalise: whether it normalises observations.
    """
    if isinstance(network, str):
        make = NETWORKS[check_choice("network", network, NETWORKS)]
        options: dict[str, Any] = {}
        if network not in RECURRENT:
            options |= {"layer_norm": True} if layer_norm else {}
            options |= {"encoder": Encoder(observation_space, normalise=True)} if normalise else {}
        return make(observation_space, action_space, tuple(hidden), **options)
    return custom_networks(observation_space, action_space, network)[0]


def custom_networks(
    observation_space: spaces.Space, action_space: spaces.Space, network: Any, max_critics: int = 0
) -> list[nn.Module]:
    """Make an actor, and critics if it returns some, by a user's `function(observation_space, action_space)`."""
    result = network(observation_space, action_space)
    several = isinstance(result, (tuple, list)) and len(result) > 0
    actor, *critics = [_check_module(each, network) for each in (result if several else [result])]
    if len(critics) > max_critics:
        takes = "an actor alone" if max_critics == 0 else f"an actor and at most {max_critics} critic(s)"
        raise ConfigError(
            f"the network function {_name(network)} returned {1 + len(critics)} networks; this algorithm takes {takes}"
        )
    for critic in critics:
        if hasattr(critic, "initial_state"):
            raise ConfigError(
                f"the network function {_name(network)} returned a critic with initial_state: a recurrent critic "
                "would be trained without its memory. Return a critic of single observations, or use --network lstm or "
                "gru."
            )
    # A bare linear layer would be taken for a second head on the features of the actor.
    return [actor, *(nn.Sequential(critic) if isinstance(critic, nn.Linear) else critic for critic in critics)]


def _check_module(result: Any, network: Any) -> nn.Module:
    if not isinstance(result, nn.Module):
        raise ConfigError(f"the network function {_name(network)} returned {result!r}, which is not a torch.nn.Module")
    return result


def _name(network: Any) -> str:
    """Return the name of a user's function, for errors."""
    return str(getattr(network, "__name__", repr(network)))


def import_network(network: Any) -> Any:
    """Import a network function given as `module:function`; return anything else unchanged."""
    if not isinstance(network, str) or ":" not in network:
        return network
    module, _, name = network.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the working directory, as `python -m` has it
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"network {network!r} cannot be imported: {error}. Use module:function.") from error
