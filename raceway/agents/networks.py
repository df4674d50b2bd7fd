"""Networks for spaces: an encoder for the observations, layers, and a head for the actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import one_hot

from raceway.agents.distributions import Gaussian, distribution_for
from raceway.autograd.convolutions import run_convolutions
from raceway.autograd.fast_paths import fast_paths_enabled
from raceway.autograd.layers import Layers
from raceway.autograd.tape import add_gradient, can_use_numpy, tape_for
from raceway.errors import ConfigError

State = dict[str, Tensor]
"""The state of a recurrent network, one row for each environment. It is empty for a feed-forward network."""


class Normaliser(nn.Module):
    """Normalise vectors to a mean of 0 and a deviation of 1, by the running statistics of observed vectors.

    The statistics are buffers, so they are sent and saved with the weights.
    """

    limit = 10.0
    """Outputs are clipped to ± this."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.var: Tensor
        self.count: Tensor
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        in_torch = x.device.type != "cpu" or x.requires_grad or torch.compiler.is_compiling()
        if in_torch or not fast_paths_enabled():
            return ((x - self.mean) / self.deviation).clamp(-self.limit, self.limit)
        # In numpy: these four operations on a small minibatch take a quarter of the time.
        result = x.numpy() - self.mean.numpy()
        result /= np.sqrt(self.var.numpy() + np.float32(1e-8))
        np.maximum(result, -self.limit, out=result)
        np.minimum(result, self.limit, out=result)
        return torch.from_numpy(result)

    @property
    def deviation(self) -> Tensor:
        """The standard deviation, by which vectors are divided."""
        return (self.var + 1e-8).sqrt()

    def observe(self, rows: Tensor) -> None:
        """Update the statistics with vectors, [N, size]."""
        rows = rows.double()
        if len(rows):
            self.merge(len(rows), rows.mean(0), rows.var(0, correction=0))

    def merge(self, num: float, mean: Tensor, var: Tensor) -> None:
        """Update the statistics with those of other vectors: their number, means and variances (in float64), [size]."""
        before = float(self.count)
        if num == 0:
            return
        total = before + num
        delta = mean - self.mean
        squares = before * self.var.double() + num * var + delta**2 * (before * num / total)
        self.mean += (delta * (num / total)).to(self.mean.dtype)
        self.var.copy_(squares / total)
        self.count.fill_(total)

    def clear(self) -> None:
        """Forget all vectors."""
        self.mean.zero_()
        self.var.fill_(1)
        self.count.zero_()


class Encoder(nn.Module):
    """Encode observations of any space as vectors of length `size`."""

    size: int

    def __init__(self, space: spaces.Space, normalise: bool = False, flatten_small_images: bool = False) -> None:
        super().__init__()
        self.kind, self.scale = "flat", 1.0
        self.num_dims = len(space.shape or ())
        self.names: list[str] = []
        self.parts = nn.ModuleList()  # not a ModuleDict, which refuses keys such as `items`
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            self.kind = "parts"
            inner = space.spaces if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
            self.names = [str(key) for key in inner]
            encoders = [Encoder(part, normalise, flatten_small_images) for part in inner.values()]
            self.parts.extend(encoders)
            self.size = sum(part.size for part in encoders)
        elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            self.kind = "discrete"
            self.counts = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec).tolist()
            self.starts = np.ravel(space.start).tolist()
            self.size = sum(self.counts)
        elif is_image(space) and not (flatten_small_images and is_small_image(space)):
            self.kind, self.images = "image", ImageEncoder(space)
            self.size = self.images.size
        else:
            self.size = math.prod(space.shape or ())
            self.scale = 1 / 255 if is_image(space) else 1.0
        plain = self.kind == "flat" and not is_image(space)
        self.normaliser = Normaliser(self.size) if normalise and plain else None

    def forward(self, obs: Any) -> Tensor:
        if self.kind == "parts":
            return torch.cat([part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)], -1)
        if self.kind == "image":
            return self.images(obs)
        flat = self.flat(obs)
        if self.kind == "flat":
            if flat.dtype != torch.float32:
                flat = flat.float() if self.scale == 1.0 else flat.float() * self.scale
            return flat if self.normaliser is None else self.normaliser(flat)
        columns = zip(flat.unbind(-1), self.starts, self.counts, strict=True)
        return torch.cat([one_hot((column - start).long(), count) for column, start, count in columns], -1).float()

    @property
    def normalises(self) -> bool:
        """Whether it, or one of its parts, normalises."""
        return self.normaliser is not None or any(part.normalises for part in self.parts)

    def observe(self, obs: Any) -> None:
        """Update the normalisers with a batch of observations."""
        for name, part in zip(self.names, self.parts, strict=True):
            part.observe(obs[name])  # type: ignore[operator]
        if self.normaliser is not None:
            self.normaliser.observe(self.flat(obs).reshape(-1, self.size))

    def flat(self, obs: Tensor) -> Tensor:
        """Return flattened observations, [..., size]."""
        return obs if self.num_dims == 1 else obs.flatten(-self.num_dims) if self.num_dims else obs.unsqueeze(-1)


def is_image(space: spaces.Space) -> bool:
    """Whether observations are images: three dimensions of bytes."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8


def is_small_image(space: spaces.Space) -> bool:
    """Whether images are too small for the convolutions."""
    shape = space.shape or ()
    return min(shape[:2] if _channels_last(shape) else shape[1:]) < 36


def _channels_last(shape: Sequence[int]) -> bool:
    return shape[2] < shape[0]


class ImageEncoder(nn.Module):
    """The convolutions of Mnih et al. 2015. Channels are first or last, whichever dimension is smaller."""

    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        shape = space.shape or ()
        self.channels_last = _channels_last(shape)
        channels, height, width = (shape[2], *shape[:2]) if self.channels_last else shape
        if is_small_image(space):
            raise ConfigError(
                f"images of {height} x {width} are too small for the convolutions, which need at least 36 x 36. "
                "Resize them, or use your own network."
            )
        convolutions = [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        self.layers = nn.Sequential(*(layer for convolution in convolutions for layer in (convolution, nn.ReLU())))
        with torch.no_grad():
            self.size = self.layers(torch.zeros(1, channels, height, width)).numel()

    def forward(self, obs: Tensor) -> Tensor:
        images = obs.reshape(-1, *obs.shape[-3:])
        images = images.movedim(-1, -3) if self.channels_last else images
        tape = tape_for(images)
        if (tape is not None or can_use_numpy(images)) and not torch.compiler.is_compiling():
            features = run_convolutions(list(self.layers)[::2], images, 1 / 255, tape)  # type: ignore[arg-type]
        else:
            features = self.layers(images.float() / 255).flatten(1)
        # A tensor that is reshaped is no longer an output on the tape.
        return features if obs.ndim == 4 else features.reshape(*obs.shape[:-3], self.size)


class ActionHead(nn.Linear):
    """The last layer. For a Gaussian it adds the logarithms of the deviations, the same for every observation."""

    def __init__(self, inputs: int, action_space: spaces.Space, log_std: float = 0.0) -> None:
        distribution = distribution_for(action_space)
        gaussian = isinstance(distribution, Gaussian)
        super().__init__(inputs, distribution.size // 2 if gaussian else distribution.size)
        self.log_std = nn.Parameter(torch.full((self.out_features,), log_std)) if gaussian else None

    def forward(self, features: Tensor) -> Tensor:
        return self.add_log_std(super().forward(features))

    def add_log_std(self, output: Tensor) -> Tensor:
        """Return the output of the linear layer, with the logarithms of the deviations if there are any."""
        return output if self.log_std is None else append_log_std(output, self.log_std)


def append_log_std(means: Tensor, log_std: Tensor) -> Tensor:
    """Return means with the logarithms of deviations, the same for all rows, appended, [..., 2 · num]."""
    tape = tape_for(means)
    if tape is None:
        return torch.cat([means, log_std.expand_as(means)], -1)
    num = means.shape[-1]
    params = np.empty((*means.shape[:-1], 2 * num), np.float32)
    params[..., :num] = means.detach().numpy()
    params[..., num:] = log_std.detach().numpy()

    def backward(gradient: np.ndarray) -> None:
        add_gradient(means, gradient[..., :num])
        add_gradient(log_std, gradient[..., num:].reshape(-1, num).sum(0))

    return tape.record(params, backward)


def mlp(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    hidden: Sequence[int] = (128,),
    activation: type[nn.Module] = nn.ReLU,
    encoder: Encoder | None = None,
    layer_norm: bool = False,
) -> Layers:
    """Return a feed-forward network: an encoder, hidden layers, and a head for the actions.

    With `layer_norm` the inputs of activations are normalised (Ba et al. 2016, https://arxiv.org/abs/1607.06450).
    """
    layers, size = hidden_layers(encoder or Encoder(observation_space), hidden, activation, layer_norm)
    return Layers(*layers, ActionHead(size, action_space))


def hidden_layers(
    encoder: Encoder, hidden: Sequence[int], activation: type[nn.Module], layer_norm: bool = False
) -> tuple[list[nn.Module], int]:
    """Return an encoder and hidden layers as a list, and the number of outputs of the last of them."""
    layers: list[nn.Module] = [encoder]
    size = encoder.size
    for width in hidden:
        layers += [nn.Linear(size, width), *([nn.LayerNorm(width)] if layer_norm else []), activation()]
        size = width
    return layers, size


def actor_critic_networks(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    hidden: Sequence[int] = (64, 64),
    normalise: bool = False,
    activation: str | None = None,
    shared: bool = False,
) -> tuple[Layers, nn.Module]:
    """Return an actor and a critic: two networks or, with `shared` or image observations, one with two heads.

    A shared critic is a single linear layer on the features of the actor. Weights are initialised orthogonally, those
    of the actor's head small, as Andrychowicz et al. 2020 (https://arxiv.org/abs/2006.05990) recommend.
    """
    encoder = Encoder(observation_space, normalise)
    has_images = encoder.kind != "flat" and any(isinstance(part, ImageEncoder) for part in encoder.modules())
    activation_type = ACTIVATIONS[activation or ("relu" if has_images else "tanh")]
    actor = mlp(observation_space, action_space, hidden, activation_type, encoder)
    if has_images or shared:
        critic: nn.Module = nn.Linear(actor[-1].in_features, 1)  # type: ignore[arg-type]
    else:
        layers, size = hidden_layers(encoder, hidden, activation_type)
        critic = Layers(*layers, nn.Linear(size, 1))
    for layer in [*actor.modules(), *critic.modules()]:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            is_head = layer is actor[-1] or (layer.out_features == 1 if isinstance(layer, nn.Linear) else False)
            gain = (0.01 if layer is actor[-1] else 1.0) if is_head else math.sqrt(2)
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return actor, critic


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
