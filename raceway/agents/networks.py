"""Networks from spaces: an encoder for whatever is observed, layers, and as many outputs as the actions need."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import one_hot

from raceway.agents.distributions import Gaussian, distribution_for
from raceway.autograd.layers import Layers
from raceway.autograd.tape import add_gradient, tape_for
from raceway.checks import check_choice
from raceway.errors import ConfigError

State = dict[str, Tensor]
"""What a recurrent network remembers, one row an environment. A feed-forward one's is empty."""


class Normaliser(nn.Module):
    """Shifts and scales vectors to a mean of 0 and a deviation of 1, by what it was shown of them.

    What it knows is in buffers, so it travels with the weights and is saved with them.
    """

    limit = 10.0
    """How far from 0 a number can be afterwards."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.var: Tensor
        self.count: Tensor
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.requires_grad or torch.compiler.is_compiling():
            return ((x - self.mean) / self.deviation).clamp(-self.limit, self.limit)
        # In numpy, where four operations on a small minibatch take a quarter of the time.
        found = x.numpy() - self.mean.numpy()
        found /= np.sqrt(self.var.numpy() + np.float32(1e-8))
        np.maximum(found, -self.limit, out=found)
        np.minimum(found, self.limit, out=found)
        return torch.from_numpy(found)

    @property
    def deviation(self) -> Tensor:
        """What it divides by."""
        return (self.var + 1e-8).sqrt()

    def observe(self, rows: Tensor) -> None:
        """Take in rows of vectors, [N, size]: Chan et al. 1979, the mean and variance of two sets together."""
        rows = rows.double()
        num, before = len(rows), float(self.count)
        if num == 0:
            return
        mean, var, total = rows.mean(0), rows.var(0, correction=0), before + num
        apart = mean - self.mean
        spread = before * self.var.double() + num * var + apart**2 * (before * num / total)
        self.mean += (apart * (num / total)).to(self.mean.dtype)
        self.var.copy_(spread / total)
        self.count.fill_(total)


class Encoder(nn.Module):
    """Turns observations of any space into vectors. `size` is their length."""

    size: int

    def __init__(self, space: spaces.Space, normalise: bool = False) -> None:
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
        self.normaliser = Normaliser(self.size) if normalise and self.kind == "flat" else None

    def forward(self, obs: Any) -> Tensor:
        if self.kind == "parts":
            return torch.cat([part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)], -1)
        if self.kind == "image":
            return self.images(obs)
        flat = self.flat(obs)
        if self.kind == "flat":
            flat = flat if flat.dtype == torch.float32 else flat.float()
            return flat if self.normaliser is None else self.normaliser(flat)
        chosen = zip(flat.unbind(-1), self.starts, self.counts, strict=True)
        return torch.cat([one_hot((column - start).long(), count) for column, start, count in chosen], -1).float()

    def flat(self, obs: Tensor) -> Tensor:
        """Return observations as vectors."""
        return obs if self.num_dims == 1 else obs.flatten(-self.num_dims) if self.num_dims else obs.unsqueeze(-1)


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
        return self.completed(super().forward(features))

    def completed(self, given: Tensor) -> Tensor:
        """Return what a linear layer gave, with the deviations."""
        return given if self.log_std is None else with_deviations(given, self.log_std)


def with_deviations(means: Tensor, log_std: Tensor) -> Tensor:
    """Return means, and behind them the logarithms of deviations that are the same for all."""
    tape = tape_for(means)
    if tape is None:
        return torch.cat([means, log_std.expand_as(means)], -1)
    num = means.shape[-1]
    found = np.empty((*means.shape[:-1], 2 * num), np.float32)
    found[..., :num] = means.detach().numpy()
    found[..., num:] = log_std.detach().numpy()

    def back(gradient: np.ndarray) -> None:
        add_gradient(means, gradient[..., :num])
        add_gradient(log_std, gradient[..., num:].reshape(-1, num).sum(0))

    return tape.note(found, back)


def mlp(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    hidden: Sequence[int] = (128,),
    activation: type[nn.Module] = nn.ReLU,
    encoder: Encoder | None = None,
) -> Layers:
    """Return a feed-forward network: an encoder, hidden layers, and a head for the actions."""
    layers, size = _layers(encoder or Encoder(observation_space), hidden, activation)
    return Layers(*layers, Head(size, action_space))


def _layers(encoder: Encoder, hidden: Sequence[int], activation: type[nn.Module]) -> tuple[list[nn.Module], int]:
    layers: list[nn.Module] = [encoder]
    size = encoder.size
    for width in hidden:
        layers += [nn.Linear(size, width), activation()]
        size = width
    return layers, size


def actor_critic(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    hidden: Sequence[int] = (64, 64),
    normalise: bool = False,
    activation: str | None = None,
    shared: bool = False,
) -> tuple[Layers, nn.Module]:
    """Return a network that acts and one that values: two of them, or if layers are shared one with two heads.

    For pictures they always are.
    Of two, the second is a whole network; of one, it goes on from what the first has before its head. Weights are
    orthogonal, and the policy's last ones small, as Andrychowicz et al. 2020 (https://arxiv.org/abs/2006.05990) advise.
    """
    encoder = Encoder(observation_space, normalise)
    pictures = encoder.kind != "flat" and any(isinstance(part, Images) for part in encoder.modules())
    between = ACTIVATIONS[activation or ("relu" if pictures else "tanh")]
    acting = mlp(observation_space, action_space, hidden, between, encoder)
    if pictures or shared:
        valuing: nn.Module = nn.Linear(acting[-1].in_features, 1)  # type: ignore[arg-type]
    else:
        layers, size = _layers(encoder, hidden, between)
        valuing = Layers(*layers, nn.Linear(size, 1))
    for layer in [*acting.modules(), *valuing.modules()]:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            last = layer is acting[-1] or (layer.out_features == 1 if isinstance(layer, nn.Linear) else False)
            gain = (0.01 if layer is acting[-1] else 1.0) if last else math.sqrt(2)
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return acting, valuing


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


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
NETWORKS: dict[str, Any] = {"mlp": mlp, "lstm": LSTM}


def network_for(
    observation_space: spaces.Space, action_space: spaces.Space, network: Any, hidden: Sequence[int]
) -> nn.Module:
    """Return a network: one of `NETWORKS`, or what a user's `function(observation_space, action_space)` returns."""
    if isinstance(network, str):
        return NETWORKS[check_choice("network", network, NETWORKS)](observation_space, action_space, tuple(hidden))
    return _module(network(observation_space, action_space), network)


def pair_for(
    observation_space: spaces.Space, action_space: spaces.Space, network: Any, critic: nn.Module
) -> tuple[nn.Module, nn.Module]:
    """Return what a user's function returns: a network that acts, and one that values or else the critic."""
    made = network(observation_space, action_space)
    acting, valuing = made if isinstance(made, tuple) and len(made) == 2 else (made, critic)
    if type(valuing) is nn.Linear:
        valuing = nn.Sequential(valuing)  # a linear layer alone would be taken for a second head
    return _module(acting, network), _module(valuing, network)


def _module(made: Any, network: Any) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise ConfigError(f"the network function {network!r} returned {made!r}, which is no torch.nn.Module")
    return made


def imported(network: Any) -> Any:
    """Return a network's function, found by `module:function`; anything else stays as it is."""
    if not isinstance(network, str) or ":" not in network:
        return network
    module, _, name = network.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the user, as `python -m` would find it
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"network {network!r} cannot be found: {error}. Give module:function.") from error
