"""Export of policies for other programs: ONNX, or torch's `.pt2`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.policy import Policy
from raceway.errors import ConfigError
from raceway.rl import empty

KeyPath = tuple[str, ...]
"""The keys that lead to a part of an observation."""

_EXAMPLE_ROWS = 2
"""Observations in the example batch: from one, the exporter would infer a fixed batch size of one."""


class ExportablePolicy(nn.Module):
    """A policy as a torch module from a batch of observations to the best actions.

    Inputs are the parts of the observation by name, `obs` if it is a single array, and for a recurrent policy its state
    as `state_...`. Outputs are `action` and the next state as `next_state_...`.
    """

    def __init__(
        self, policy: Policy, observation_space: spaces.Space, action_space: spaces.Space, clip_actions: bool
    ) -> None:
        super().__init__()
        self.policy = policy
        leaves = list(_leaves(observation_space))
        self.paths = {".".join(path) or "obs": path for path, _ in leaves}
        self.parts = {".".join(path) or "obs": space for path, space in leaves}
        self.state_names = list(policy.initial_state(1))
        if len({*self.inputs}) < len(leaves) + len(self.state_names):
            raise ConfigError(f"parts of {observation_space} would have the same input name. Rename its keys.")
        self.dtype = torch.from_numpy(np.empty(0, action_space.dtype)).dtype
        self.low: Tensor | None
        self.high: Tensor | None
        clips = clip_actions and isinstance(action_space, spaces.Box)
        for side in ("low", "high"):
            self.register_buffer(side, torch.from_numpy(getattr(action_space, side).copy()) if clips else None)

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs."""
        return [*self.parts, *(f"state_{name}" for name in self.state_names)]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return ["action", *(f"next_state_{name}" for name in self.state_names)]

    def examples(self, num: int) -> dict[str, Tensor]:
        """Return inputs for `num` observations, with the initial recurrent state."""
        obs = {name: torch.from_numpy(empty(space, (num,))) for name, space in self.parts.items()}
        return obs | {f"state_{name}": part for name, part in self.policy.initial_state(num).items()}

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Return the actions, and the next recurrent state."""
        obs = _nested({path: inputs[name] for name, path in self.paths.items()})
        params, state = self.policy(obs, {name: inputs[f"state_{name}"] for name in self.state_names})
        actions = self.policy.distribution.best_actions(params)
        if self.low is not None and self.high is not None:
            actions = torch.minimum(torch.maximum(actions, self.low), self.high)
        return actions.to(self.dtype), *(state[name] for name in self.state_names)


def _leaves(space: spaces.Space, path: KeyPath = ()) -> Iterator[tuple[KeyPath, spaces.Space]]:
    """Yield every part of a space that is an array, with the keys that lead to it."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield path, space
        return
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in parts:
        yield from _leaves(part, (*path, str(key)))


def _nested(parts: Mapping[KeyPath, Any]) -> Any:
    """Return parts as a nested mapping; the inverse of `_leaves`.

    >>> _nested({("a", "b"): 1, ("a", "c"): 2, ("d",): 3}), _nested({(): 4})
    ({'a': {'b': 1, 'c': 2}, 'd': 3}, 4)
    """
    tree: dict[str, Any] = {}
    for path, part in parts.items():
        if not path:
            return part
        branch = tree
        for key in path[:-1]:
            branch = branch.setdefault(key, {})
        branch[path[-1]] = part
    return tree


def export_torch(policy: ExportablePolicy, path: str | Path) -> Path:
    """Save a policy as `.pt2`, for `torch.export.load`, which does not need Raceway."""
    path = _check_path(path, ".pt2")
    program = _trace(policy)
    with _without_exporter_warnings():
        torch.export.save(program, path)
    return path


def export_onnx(policy: ExportablePolicy, path: str | Path) -> Path:
    """Save a policy as ONNX, weights included."""
    path = _check_path(path, ".onnx")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the export to ONNX needs {error.name}: pip install 'raceway[onnx]'") from error
    traced = _trace(policy)
    try:
        with _without_exporter_warnings():
            program = torch.onnx.export(
                traced, dynamo=True, verbose=False, input_names=policy.inputs, output_names=policy.outputs
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ConfigError(f"ONNX cannot express this network: {error}") from error
    assert program is not None
    program.save(str(path), external_data=False)  # the weights are in the file
    return path


def _trace(policy: ExportablePolicy) -> Any:
    """Return the graph of a policy, for any batch size."""
    examples = policy.examples(_EXAMPLE_ROWS)
    batch = torch.export.Dim.DYNAMIC
    before = policy.training
    try:
        with _without_exporter_warnings(), torch.enable_grad():  # without gradients, layers run in numpy, untraced
            return torch.export.export(
                policy.eval(), (examples,), dynamic_shapes=({name: {0: batch} for name in examples},)
            )
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
        raise ConfigError(f"torch cannot export this network: {error}") from error
    finally:
        policy.train(before)


def _check_path(path: str | Path, suffix: str) -> Path:
    path = Path(path)
    if path.suffix != suffix:
        raise ConfigError(f"the file name must end in {suffix}: {str(path)!r}")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no directory {path.parent} for {path.name}")
    return path


@contextmanager
def _without_exporter_warnings() -> Iterator[None]:
    """Suppress warnings of torch's exporter about its own deprecations and the operators it skips."""
    registration_log = logging.getLogger("torch.onnx._internal.exporter._registration")  # operators of torchvision
    before = registration_log.level
    registration_log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for kind in (FutureWarning, DeprecationWarning):
                warnings.filterwarnings("ignore", category=kind, module=r"(torch|onnxscript|onnx_ir|copyreg)(\..*)?$")
            yield
    finally:
        registration_log.setLevel(before)
