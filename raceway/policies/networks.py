"""Networks from spaces: an encoder for whatever is observed, layers, and as many outputs as the actions need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import one_hot

from raceway.errors import ConfigError, known
from raceway.policies.distributions import Gaussian, distribution_for

State = dict[str, Tensor]
"""What a recurrent network remembers, one row an environment. A feed-forward one's is empty."""


class Encoder(nn.Module):
    """Turns observations of any space into vectors. `size` is their length."""

    size: int

    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        self.kind = "flat"
        self.num_dims = len(space.shape or ())
        self.names: list[str] = []
        self.parts = nn.ModuleList()  # a ModuleDict takes no key such as `items`
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            self.kind = "parts"
            inner = space.spaces if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
            self.names = [str(key) for key in inner]
            encoders = [Encoder(part) for part in inner.values()]
            self.parts.extend(encoders)
            self.size = sum(part.size for part in encoders)
        elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            self.kind = "choices"
            self.counts = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec).tolist()
            self.starts = np.ravel(space.start).tolist()
            self.size = sum(self.counts)
        elif is_image(space):
            self.kind, self.images = "image", Images(space)
            self.size = self.images.size
        else:
            self.size = math.prod(space.shape or ())

    def forward(self, obs: Any) -> Tensor:
        if self.kind == "parts":
            return torch.cat([part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)], -1)
        if self.kind == "image":
            return self.images(obs)
        flat = obs if self.num_dims == 1 else obs.flatten(-self.num_dims) if self.num_dims else obs.unsqueeze(-1)
        if self.kind == "flat":
            return flat if flat.dtype == torch.float32 else flat.float()
        chosen = zip(flat.unbind(-1), self.starts, self.counts, strict=True)
        return torch.cat([one_hot((column - start).long(), count) for column, start, count in chosen], -1).float()


def is_image(space: spaces.Space) -> bool:
    """Whether observations are pictures: three dimensions of bytes, large enough for convolutions."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8


class Images(nn.Module):
    """The convolutions of Mnih et al. 2015. Channels may come first or last: whichever is smaller."""

    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        shape = space.shape or ()
        self.last = shape[2] < shape[0]
        channels, height, width = (shape[2], *shape[:2]) if self.last else shape
        if min(height, width) < 36:
            raise ConfigError(f"pictures of {height} x {width} are too small for the usual convolutions (36 x 36)")
        convolutions = [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        self.layers = nn.Sequential(*(layer for one in convolutions for layer in (one, nn.ReLU())))
        with torch.no_grad():
            self.size = self.layers(torch.zeros(1, channels, height, width)).numel()

    def forward(self, obs: Tensor) -> Tensor:
        pictures = obs.reshape(-1, *obs.shape[-3:]).float() / 255
        pictures = pictures.movedim(-1, -3) if self.last else pictures
        return self.layers(pictures).reshape(*obs.shape[:-3], -1)


class Head(nn.Linear):
    """The last layer. For a Gaussian it adds the logarithms of the deviations, the same for every observation."""

    def __init__(self, inputs: int, action_space: spaces.Space, log_std: float = 0.0) -> None:
        distribution = distribution_for(action_space)
        gaussian = isinstance(distribution, Gaussian)
        super().__init__(inputs, distribution.size // 2 if gaussian else distribution.size)
        self.log_std = nn.Parameter(torch.full((self.out_features,), log_std)) if gaussian else None

    def forward(self, features: Tensor) -> Tensor:
        given = super().forward(features)
        return given if self.log_std is None else torch.cat([given, self.log_std.expand_as(given)], -1)


def mlp(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    hidden: Sequence[int] = (128,),
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Return a feed-forward network: an encoder, hidden layers, and a head for the actions."""
    encoder = Encoder(observation_space)
    layers: list[nn.Module] = [encoder]
    size = encoder.size
    for width in hidden:
        layers += [nn.Linear(size, width), activation()]
        size = width
    return nn.Sequential(*layers, Head(size, action_space))


class LSTM(nn.Module):
    """A recurrent network: an encoder, one LSTM, and a head for the actions."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, hidden: Sequence[int] = ()) -> None:
        super().__init__()
        width = hidden[-1] if hidden else 128
        self.encoder = Encoder(observation_space)
        self.cell = nn.LSTMCell(self.encoder.size, width)
        self.head = Head(width, action_space)

    def initial_state(self, num: int) -> State:
        """Return what it remembers at the start of an episode: nothing."""
        return {name: torch.zeros(num, self.cell.hidden_size) for name in ("hidden", "cell")}

    def forward(self, obs: Any, state: State) -> tuple[Tensor, State]:
        hidden, cell = self.cell(self.encoder(obs), (state["hidden"], state["cell"]))
        return self.head(hidden), {"hidden": hidden, "cell": cell}


NETWORKS: dict[str, Any] = {"mlp": mlp, "lstm": LSTM}


def network_for(
    observation_space: spaces.Space, action_space: spaces.Space, network: Any, hidden: Sequence[int]
) -> nn.Module:
    """Return a network: one of `NETWORKS`, or what a user's `function(observation_space, action_space)` returns."""
    if isinstance(network, str):
        return NETWORKS[known("network", network, NETWORKS)](observation_space, action_space, tuple(hidden))
    made = network(observation_space, action_space)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"the network function {network!r} returned {made!r}, which is no torch.nn.Module")
    return made
