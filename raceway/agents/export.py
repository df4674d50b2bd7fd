"""A policy as a file that other programs can run: ONNX, or torch's own `.pt2`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path as File
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.distributions import Categorical, Gaussian, MultiCategorical
from raceway.agents.policy import Policy
from raceway.errors import ConfigError
from raceway.rl import empty

Path = tuple[str, ...]
"""The keys that lead to a part of an observation."""

_EXAMPLES = 2
"""Observations in the example: of one, the exporter would think that it is always one."""


class Choosing(nn.Module):
    """From a batch of observations to the best actions, in torch alone.

    What goes in are the parts of an observation by name, `obs` if there is only one, and of a recurrent policy what it
    remembers, as `state_...`. Out come `action`, and what it then remembers as `next_state_...`.
    """

    def __init__(
        self, policy: Policy, observation_space: spaces.Space, action_space: spaces.Space, clip_actions: bool
    ) -> None:
        super().__init__()
        self.policy = policy
        found = list(_leaves(observation_space))
        self.paths = {".".join(path) or "obs": path for path, _ in found}
        self.parts = {".".join(path) or "obs": space for path, space in found}
        self.remembers = list(policy.initial_state(1))
        if len({*self.inputs}) < len(found) + len(self.remembers):
            raise ConfigError(f"the parts of {observation_space} have names that would be the same as inputs")
        self.dtype = torch.from_numpy(np.empty(0, action_space.dtype)).dtype
        self.low: Tensor | None
        self.high: Tensor | None
        clips = clip_actions and isinstance(action_space, spaces.Box)
        for side in ("low", "high"):
            self.register_buffer(side, torch.from_numpy(getattr(action_space, side).copy()) if clips else None)

    @property
    def inputs(self) -> list[str]:
        """Names of what goes in."""
        return [*self.parts, *(f"state_{name}" for name in self.remembers)]

    @property
    def outputs(self) -> list[str]:
        """Names of what comes out."""
        return ["action", *(f"next_state_{name}" for name in self.remembers)]

    def examples(self, num: int) -> dict[str, Tensor]:
        """Return so many observations, and what is remembered before any."""
        seen = {name: torch.from_numpy(empty(space, (num,))) for name, space in self.parts.items()}
        return seen | {f"state_{name}": part for name, part in self.policy.initial_state(num).items()}

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Return actions, and what is remembered."""
        obs = _nested({path: inputs[name] for name, path in self.paths.items()})
        params, state = self.policy(obs, {name: inputs[f"state_{name}"] for name in self.remembers})
        actions = self._best(params)
        if self.low is not None and self.high is not None:
            actions = torch.minimum(torch.maximum(actions, self.low), self.high)
        return actions.to(self.dtype), *(state[name] for name in self.remembers)

    def _best(self, params: Tensor) -> Tensor:
        found = self.policy.distribution
        if isinstance(found, Categorical):
            return params.argmax(-1) + found.start
        if isinstance(found, MultiCategorical):
            pieces = params.tensor_split(found.edges, -1)
            chosen = [piece.argmax(-1) + part.start for part, piece in zip(found.parts, pieces, strict=True)]
            return torch.stack(chosen, -1).reshape(-1, *found.shape)
        if isinstance(found, Gaussian):
            return params[..., : found.num].reshape(-1, *found.shape)
        raise ConfigError(f"a policy with actions of a {type(found).__name__} cannot be exported")


def _leaves(space: spaces.Space, path: Path = ()) -> Iterator[tuple[Path, spaces.Space]]:
    """Give every part of a space that is an array, with the keys that lead to it."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield path, space
        return
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in parts:
        yield from _leaves(part, (*path, str(key)))


def _nested(parts: Mapping[Path, Any]) -> Any:
    """Return parts as the nested mapping that they come from.

    >>> _nested({("a", "b"): 1, ("a", "c"): 2, ("d",): 3}), _nested({(): 4})
    ({'a': {'b': 1, 'c': 2}, 'd': 3}, 4)
    """
    found: dict[str, Any] = {}
    for path, part in parts.items():
        if not path:
            return part
        into = found
        for key in path[:-1]:
            into = into.setdefault(key, {})
        into[path[-1]] = part
    return found


def export_torch(choosing: Choosing, path: str | File) -> File:
    """Save what chooses as `.pt2`, for `torch.export.load`, which needs no Raceway."""
    wanted = _checked(path, ".pt2")
    program = _program(choosing)
    with _quietly():
        torch.export.save(program, wanted)
    return wanted


def export_onnx(choosing: Choosing, path: str | File) -> File:
    """Save what chooses as ONNX, weights included."""
    wanted = _checked(path, ".onnx")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"to export ONNX, {error.name} is needed: pip install 'raceway[onnx]'") from error
    traced = _program(choosing)
    try:
        with _quietly():
            program = torch.onnx.export(
                traced, dynamo=True, verbose=False, input_names=choosing.inputs, output_names=choosing.outputs
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ConfigError(f"ONNX cannot express this network: {error}") from error
    assert program is not None
    program.save(str(wanted), external_data=False)  # the weights are in the file
    return wanted


def _program(choosing: Choosing) -> Any:
    """Return the graph of what chooses, for any number of observations."""
    examples = choosing.examples(_EXAMPLES)
    batch = torch.export.Dim.DYNAMIC
    before = choosing.training
    try:
        with _quietly(), torch.enable_grad():  # without gradients, layers go by numpy, which leaves no graph
            return torch.export.export(
                choosing.eval(), (examples,), dynamic_shapes=({name: {0: batch} for name in examples},)
            )
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
        raise ConfigError(f"torch cannot export this network: {error}") from error
    finally:
        choosing.train(before)


def _checked(path: str | File, suffix: str) -> File:
    wanted = File(path)
    if wanted.suffix != suffix:
        raise ConfigError(f"the file must end in {suffix}: {str(path)!r}")
    if not wanted.parent.is_dir():
        raise ConfigError(f"there is no folder {wanted.parent} for {wanted.name}")
    return wanted


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out what torch's exporter says to its own authors: what it will do otherwise one day, and what it skips."""
    skips = logging.getLogger("torch.onnx._internal.exporter._registration")  # operators of torchvision
    before = skips.level
    skips.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for kind in (FutureWarning, DeprecationWarning):
                warnings.filterwarnings("ignore", category=kind, module=r"(torch|onnxscript|onnx_ir|copyreg)(\..*)?$")
            yield
    finally:
        skips.setLevel(before)
