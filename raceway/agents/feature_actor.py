"""Acting with a network of image observations: its features are kept, from which values are computed later.

The convolutions are nearly all of the work. An actor-critic with shared layers needs them a second time, for the values
of the same observations and the log-probabilities of the actions; with the features, it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from raceway.agents.networks import ImageEncoder, State
from raceway.autograd.layers import Layers, run_layers
from raceway.rl import tree_map

if TYPE_CHECKING:
    from raceway.agents.policy import Policy

Array = np.ndarray


class FeatureActor:
    """Acts like a policy, and keeps the features of the last observations.

    Args:
        policy: a feed-forward policy whose network is `Layers`.
        random: the generator for sampling; None takes the most likely actions.
    """

    def __init__(self, policy: Policy, random: np.random.Generator | None) -> None:
        assert isinstance(policy.network, Layers)
        self.policy, self.random = policy, random
        self.network, self.head = policy.network, list(policy.network)[-1:]
        self.num_features: int = policy.network[-1].in_features  # type: ignore[assignment]
        self.last_features = np.empty((0, self.num_features), np.float32)
        """The input of the network's last layer for the last observations, [B, num_features]."""

    def __call__(self, obs: Any, state: State) -> tuple[Array, State]:
        """Return an action for every observation, [B, ...], and the recurrent state, which is empty."""
        policy = self.policy
        with torch.inference_mode():
            tensors = tree_map(torch.from_numpy, obs)
            features = self.network.features(policy.network_obs(tensors))
            params = policy.apply_mask(run_layers(self.head, features), tensors).detach().numpy()
        self.last_features = features.numpy()
        if self.random is None:
            return policy.distribution.mode(params), state
        return policy.distribution.sample(params, self.random), state


def make_feature_actor(policy: Policy, random: np.random.Generator | None) -> FeatureActor | None:
    """Return an actor that keeps features, or None if the network is not a built-in one for images."""
    network = policy.network
    if policy.recurrent or policy.log_std is not None or type(network) is not Layers:
        return None
    has_images = any(isinstance(part, ImageEncoder) for part in network[0].modules())
    return FeatureActor(policy, random) if has_images and isinstance(network[-1], nn.Linear) else None
