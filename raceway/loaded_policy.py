"""`load`: a trained policy from its run directory, ready for inference."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gymnasium import spaces

from raceway.agents import Policy, Weights, make_policy
from raceway.agents.acting_policy import ActingPolicy
from raceway.agents.networks import ACTIVATIONS, NETWORKS, import_network
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.checks import check_choice
from raceway.envs import EnvSettings
from raceway.errors import CheckpointError, ConfigError
from raceway.machine import worker_compute_settings
from raceway.rl.space_json import space_from_json, space_to_json
from raceway.rollouts.evaluation import Evaluation, evaluate
from raceway.runs.config_file import has_policy, read_config
from raceway.runs.resume import check_layer_sizes, check_same_run, check_trusted, check_weights_fit

_log = logging.getLogger(__name__)


class LoadedPolicy(ActingPolicy):
    """A trained policy, for `act`, `reset`, `evaluate`, `export_onnx` and `export_torch`."""

    about: dict[str, Any]
    """Its run and checkpoint: `run`, `algorithm`, `env`, `checkpoint`, `steps` and `mean_return`."""

    def __init__(self, policy: Policy, config: Mapping[str, Any], about: dict[str, Any], *, trust: bool) -> None:
        observation_space, action_space = _spaces(config)
        clip_actions = bool(config["policy"].get("clip_actions"))
        super().__init__(policy.eval(), observation_space, action_space, clip_actions=clip_actions)
        self.about, self._config, self._trust = about, config, trust

    def __repr__(self) -> str:
        return f"<policy of {self.about['algorithm']} on {self.about['env']}, after {self.about['steps']:,} steps>"

    def env_settings(self, env: Any = None) -> EnvSettings:
        """Return the settings of the environment that it was trained in, or those of another one.

        Args:
            env: an `EnvSettings`; or a name or function, which is created with the arguments of the run.
        """
        if isinstance(env, EnvSettings):
            return env
        saved = self._config["env"]
        if env is not None:
            return EnvSettings(env, saved["kwargs"], saved["vector"])
        name = check_trusted("env", saved["name"], importable=self._config["importable"]["env"], trust=self._trust)
        return EnvSettings(name, saved["kwargs"], saved["vector"])

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


def load(
    run: str | Path, which: str | int = "best", *, network: Any = None, trust: bool = False
) -> LoadedPolicy:  # fmt: skip
    """Load a trained policy.

    No module that the run names is imported unless the caller passes it again or trusts the run.

    Args:
        run: the run directory.
        which: the `best` checkpoint (the latest if none has a score), the `latest`, or a number of environment steps.
        network: the network of the run if it is not one of Raceway's: a function, or `module:function`.
        trust: whether modules of a network or environment that the run names may be imported.
    """
    path = Path(run)
    config = read_config(path)
    if not has_policy(config):
        raise ConfigError(
            f"the run in {path} has no description of its policy: an older version wrote it. Train it again."
        )
    checkpoint, weights = _read_checkpoint(Checkpoints(path / "checkpoints"), _check_which(which))
    check_same_run(checkpoint, config)
    check_layer_sizes(config, config["policy"]["hidden"], weights)
    policy = _make_untrained(config, _network(config, network, trust=trust))
    check_weights_fit(policy, weights, checkpoint.path)
    policy.load(weights)
    about = {
        "run": str(path),
        "algorithm": config["algorithm"],
        "env": config["env"]["name"],
        "checkpoint": str(checkpoint.path),
        "steps": checkpoint.about["steps"],
        "mean_return": checkpoint.about.get("mean_return"),
    }
    return LoadedPolicy(policy, config, about, trust=trust)


def _check_which(which: str | int) -> str | int:
    if which in ("best", "latest") or (isinstance(which, int) and not isinstance(which, bool)):
        return which
    if isinstance(which, str) and which.isascii() and which.isdecimal():
        return which.lstrip("0") or "0"
    raise ConfigError(f"which must be best, latest, or a number of steps, not {which!r}")


def _spaces(config: Mapping[str, Any]) -> tuple[spaces.Space, spaces.Space]:
    return space_from_json(config["spaces"]["observation"]), space_from_json(config["spaces"]["action"])


def _make_untrained(config: Mapping[str, Any], network: Any) -> Policy:
    """Create the policy of a run, untrained."""
    options = config["policy"]
    if options["activation"] is not None:
        check_choice("activation", options["activation"], ACTIVATIONS)
    return make_policy(
        *_spaces(config), network, tuple(options["hidden"]), 0, kind=options["kind"], normalise=options["normalise"],
        num_slots=options["num_slots"], activation=options["activation"], shared=options["shared"],
    )  # fmt: skip


def _network(config: Mapping[str, Any], network: Any, *, trust: bool) -> Any:
    """Return the network of a run: the caller's, a built-in one, or one imported from a trusted run."""
    saved = config["policy"]["network"]
    if network is not None:
        return import_network(network)
    if saved in NETWORKS:
        return saved
    importable = ":" in saved and config["importable"]["network"]
    return import_network(check_trusted("network", saved, importable=importable, trust=trust))


def _read_checkpoint(checkpoints: Checkpoints, which: str | int) -> tuple[Checkpoint, Weights]:
    """Return a checkpoint and its weights. If the best cannot be read, fall back to the latest that can."""
    try:
        checkpoint = checkpoints.find(which)
        return checkpoint, checkpoint.weights()
    except CheckpointError as error:
        if which != "best" or not checkpoints.all():
            raise
        checkpoint, weights = checkpoints.newest_readable(Checkpoint.weights)
        _log.warning("the best checkpoint cannot be read: %s. Loading %s instead", error, checkpoint.path)
        return checkpoint, weights


def _without_bounds(space: spaces.Space) -> Any:
    """Return a space as JSON without its bounds, for comparisons."""

    def remove_bounds(doc: Any) -> Any:
        if isinstance(doc, list):
            return [remove_bounds(part) for part in doc]
        if not isinstance(doc, dict):
            return doc
        return {key: remove_bounds(part) for key, part in doc.items() if key not in ("low", "high")}

    return remove_bounds(space_to_json(space))
