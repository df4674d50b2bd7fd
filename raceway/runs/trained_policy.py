"""A trained policy, as a training returns it and as `load` reads it from a run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymnasium import spaces
from torch import Tensor

from raceway.agents import Policy, Weights
from raceway.agents.acting_policy import ActingPolicy
from raceway.envs import EnvSettings
from raceway.errors import ConfigError
from raceway.machine import worker_compute_settings
from raceway.rl.space_json import space_to_json
from raceway.rollouts.evaluation import Evaluation, evaluate
from raceway.runs.resume import check_trusted


class TrainedPolicy(ActingPolicy):
    """A trained policy, for `act`, `reset`, `evaluate`, `export_onnx` and `export_torch`.

    Args:
        policy: the network with the distribution of its actions.
        spaces: the observation space and the action space.
        env: the environment that it was trained in.
        about: see `about`.
        clip_actions: whether actions of a Box are clipped to its bounds.
        importable: whether the name of `env` can be imported; false for a function of a saved run.
        trust: whether the module that the name of `env` names may be imported.
    """

    about: dict[str, Any]
    """Its run and checkpoint: `run`, `algorithm`, `env`, `checkpoint`, `steps` and `mean_return`."""

    def __init__(
        self,
        policy: Policy,
        spaces: tuple[spaces.Space, spaces.Space],
        env: EnvSettings,
        about: dict[str, Any],
        *,
        clip_actions: bool,
        importable: bool = True,
        trust: bool = True,
    ) -> None:
        super().__init__(policy, *spaces, clip_actions=clip_actions)
        self.about, self._env = about, env
        self._importable, self._trust = importable, trust

    def __repr__(self) -> str:
        return f"<policy of {self.about['algorithm']} on {self.about['env']}, after {self.about['steps']:,} steps>"

    def weights(self) -> Weights:
        """Return the parameters and buffers of the network by name, as arrays, which share the network's memory."""
        return self.policy.weights()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of the network by name, as tensors. `policy` is the torch module."""
        return self.policy.state_dict()

    def sha256(self) -> str:
        """Return a hash of all parameters and buffers, with their names and shapes."""
        return self.policy.sha256()

    def env_settings(self, env: Any = None) -> EnvSettings:
        """Return the settings of the environment that it was trained in, or those of another one.

        Args:
            env: an `EnvSettings`; or a name or function, which is created with the arguments of the run.
        """
        if isinstance(env, EnvSettings):
            return env
        if env is not None:
            return EnvSettings(env, self._env.kwargs, self._env.vector)
        check_trusted("env", self._env.name, importable=self._importable, trust=self._trust)
        return self._env

    def evaluate(
        self,
        num_episodes: int = 20,
        *,
        env: Any = None,
        seed: int = 0,
        deterministic: bool = True,
        on_progress: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Run complete episodes. The same arguments give the same results every time.

        Args:
            num_episodes: number of episodes.
            env: another environment than that of the run; see `env_settings`.
            seed: seed of the episodes and of sampled actions.
            deterministic: take the most likely action, or the one with the highest Q-value; else sample.
            on_progress: called with the number of finished episodes, whenever some finish.
        """
        settings = self.env_settings(env)
        options: dict[str, Any] = {
            "deterministic": deterministic,
            "clip_actions": self.clip_actions,
            "on_progress": on_progress,
        }
        with worker_compute_settings():
            return evaluate(self.policy, settings, num_episodes, seed=seed, check=self.check_spaces, **options)

    def check_spaces(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Check that an environment has the spaces of this policy. Bounds may differ."""
        pairs = {
            "observations": (self.observation_space, observation_space),
            "actions": (self.action_space, action_space),
        }
        for name, (own, other) in pairs.items():
            if _without_bounds(own) != _without_bounds(other):
                raise ConfigError(f"the environment has {name} of {other}; the policy was trained with {own}")

    def export_onnx(self, path: str | Path) -> Path:
        """Export to ONNX: a model from a batch of observations to the actions that `act` returns.

        Inputs are `obs`, or the entries of a Dict space by name (`action_mask` too), and the state of a recurrent
        policy, as `state_...`. Outputs are `action`, and the next state, as `next_state_...`.
        """
        from raceway.agents.export import export_onnx

        return export_onnx(self._exportable(), path)

    def export_torch(self, path: str | Path) -> Path:
        """Export to a `.pt2` file, for `torch.export.load(path).module()`, which does not need Raceway.

        The module takes a dict of inputs by name, and returns a tuple of outputs; see `export_onnx`.
        """
        from raceway.agents.export import export_torch

        return export_torch(self._exportable(), path)

    def _exportable(self) -> Any:
        from raceway.agents.export import ExportablePolicy

        return ExportablePolicy(self.policy, self.observation_space, self.action_space, self.clip_actions)


def _without_bounds(space: spaces.Space) -> Any:
    """Return a space as JSON without its bounds, for comparisons."""

    def remove_bounds(doc: Any) -> Any:
        if isinstance(doc, list):
            return [remove_bounds(part) for part in doc]
        if not isinstance(doc, dict):
            return doc
        return {key: remove_bounds(part) for key, part in doc.items() if key not in ("low", "high")}

    return remove_bounds(space_to_json(space))
