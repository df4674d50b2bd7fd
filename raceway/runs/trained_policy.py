"""A trained policy, as a training returns it and as `load` reads it from a run directory."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gymnasium import spaces
from torch import Tensor

from raceway.agents import Agent, Explorer, Spaces, Weights
from raceway.agents.acting_policy import ActingPolicy
from raceway.envs import EnvSettings
from raceway.envs.names import is_multi_agent
from raceway.errors import ConfigError
from raceway.machine import worker_compute_settings
from raceway.rl.space_json import without_bounds
from raceway.rollouts.evaluation import Evaluation, evaluate
from raceway.runs.resume import check_trusted


class TrainedPolicy(ActingPolicy):
    """A trained policy, for `act`, `reset`, `evaluate`, `export_onnx` and `export_torch`.

    Args:
        agent: everything that was trained. Its part `actor` acts.
        spaces: the observation space and the action space.
        env: the environment that it was trained in.
        about: see `about`.
        clip_actions: whether actions of a Box are clipped to its bounds.
        importable: whether the name of `env` can be imported; false for a function of a saved run.
        trust: whether the module that the name of `env` names may be imported.
        explorer: how actions are chosen that are not deterministic.
    """

    about: dict[str, Any]
    """Its run and checkpoint: `run`, `algorithm`, `env`, `checkpoint`, `steps` and `mean_return`."""

    def __init__(
        self,
        agent: Agent,
        spaces: Spaces,
        env: EnvSettings,
        about: dict[str, Any],
        *,
        clip_actions: bool,
        importable: bool = True,
        trust: bool = True,
        explorer: Explorer | None = None,
    ) -> None:
        super().__init__(
            agent.actor, *spaces, clip_actions=clip_actions, explorer=explorer,
            last_action_and_reward=env.last_action_and_reward,
        )  # fmt: skip
        self.agent, self.about, self._env = agent, about, env
        self._importable, self._trust = importable, trust

    def __repr__(self) -> str:
        return f"<policy of {self.about['algorithm']} on {self.about['env']}, after {self.about['steps']:,} steps>"

    def weights(self) -> Weights:
        """Return the parameters and buffers of the agent by name, as arrays, which share its memory."""
        return self.agent.weights()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of the agent by name, as tensors. `agent` is the torch module."""
        return self.agent.state_dict()

    def sha256(self) -> str:
        """Return a hash of all parameters and buffers, with their names and shapes."""
        return self.agent.sha256()

    def with_agent(self, agent: Agent, about: Mapping[str, Any]) -> TrainedPolicy:
        """Return the same policy with another agent, and more in `about`."""
        trained = copy.copy(self)
        trained.agent, trained.policy = agent, agent.actor
        trained._last_step = copy.copy(self._last_step)
        trained.about = {**self.about, **about}
        return trained

    def env_settings(self, env: Any = None) -> EnvSettings:
        """Return the settings of the environment that it was trained in, or those of another one.

        Args:
            env: an `EnvSettings`; or a name or function, which is created with the arguments of the run.
        """
        if isinstance(env, EnvSettings):
            return env
        if is_multi_agent(env):
            raise ConfigError(f"{env} has several agents, and this policy is for one. Use another environment.")
        if env is not None:
            return dataclasses.replace(self._env, env=env)
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
            "explorer": self.explorer,
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
            if without_bounds(own) != without_bounds(other):
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
