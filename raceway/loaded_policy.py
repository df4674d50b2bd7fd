"""`load`: a trained policy from the folder of its run, ready to be asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gymnasium import spaces

from raceway.agents import Policy, Weights, make_policy
from raceway.agents.inference import ActingPolicy
from raceway.agents.networks import ACTIVATIONS, NETWORKS, imported
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.checks import check_choice
from raceway.envs import EnvSettings
from raceway.errors import CheckpointError, ConfigError
from raceway.machine import as_in_a_worker
from raceway.rl.space_json import space_from_json, space_to_json
from raceway.rollouts.evaluation import Evaluation, evaluate
from raceway.runs.directory import read_config
from raceway.runs.resume import check_fit, check_run, check_size, trusted
from raceway.runs.schema import has_policy

_log = logging.getLogger(__name__)


class LoadedPolicy(ActingPolicy):
    """A trained policy, for `act`, `reset`, `evaluate`, `export_onnx` and `export_torch`."""

    about: dict[str, Any]
    """Its run and checkpoint: `run`, `algorithm`, `env`, `checkpoint`, `steps` and `mean_return`."""

    def __init__(self, policy: Policy, config: Mapping[str, Any], about: dict[str, Any], *, trust: bool) -> None:
        seen, done = _spaces(config)
        super().__init__(policy.eval(), seen, done, clip_actions=bool(config["policy"].get("clip_actions")))
        self.about, self._config, self._trust = about, config, trust

    def __repr__(self) -> str:
        return f"<policy of {self.about['algorithm']} on {self.about['env']}, after {self.about['steps']:,} steps>"

    def env_settings(self, env: Any = None) -> EnvSettings:
        """Return how the environment is made that it was trained in, or this one instead.

        Args:
            env: an `EnvSettings`; or a name or function, which is made with the arguments of the run.
        """
        if isinstance(env, EnvSettings):
            return env
        made = self._config["env"]
        if env is not None:
            return EnvSettings(env, made["kwargs"], made["vector"])
        name = trusted("env", made["name"], importable=self._config["importable"]["env"], trust=self._trust)
        return EnvSettings(name, made["kwargs"], made["vector"])

    def evaluate(
        self,
        num_episodes: int = 20,
        *,
        env: Any = None,
        seed: int = 0,
        deterministic: bool = True,
        told: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Play whole episodes. The same arguments give the same numbers every time.

        Args:
            num_episodes: how many.
            env: another environment than that of the run; see `env_settings`.
            seed: of the episodes, and of actions that are drawn.
            deterministic: take the most likely action, or that of the highest value; else draw.
            told: called with how many episodes are over, whenever some are.
        """
        settings = self.env_settings(env)
        how: dict[str, Any] = {"deterministic": deterministic, "clip_actions": self.clip_actions, "told": told}
        with as_in_a_worker():
            return evaluate(self.policy, settings, num_episodes, seed=seed, check=self.check_spaces, **how)

    def check_spaces(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Check that an environment is one that this policy can play in. Bounds may be others."""
        pairs = {
            "observations": (self.observation_space, observation_space),
            "actions": (self.action_space, action_space),
        }
        for what, (own, other) in pairs.items():
            if _form(own) != _form(other):
                raise ConfigError(f"the environment has {what} of {other}; the policy was trained with {own}")

    def export_onnx(self, path: str | Path) -> Path:
        """Save it as ONNX: from a batch of observations to the actions that `act` gives.

        Inputs are `obs`, or the parts of a Dict by name (`action_mask` too), and of a recurrent policy what it
        remembers, as `state_...`. Outputs are `action`, and what it then remembers, as `next_state_...`.
        """
        from raceway.agents.export import export_onnx

        return export_onnx(self._choosing(), path)

    def export_torch(self, path: str | Path) -> Path:
        """Save it as `.pt2`, for `torch.export.load(path).module()`, which needs no Raceway.

        It takes a dict of the inputs by name, and returns a tuple of the outputs; see `export_onnx`.
        """
        from raceway.agents.export import export_torch

        return export_torch(self._choosing(), path)

    def _choosing(self) -> Any:
        from raceway.agents.export import Choosing

        return Choosing(self.policy, self.observation_space, self.action_space, self.clip_actions)


def load(
    run: str | Path, which: str | int = "best", *, network: Any = None, trust: bool = False
) -> LoadedPolicy:  # fmt: skip
    """Load a trained policy.

    Nothing that a run names is imported, unless it is given again or trusted: a run may come from anybody.

    Args:
        run: the folder of the run.
        which: its `best` checkpoint, or if none has a score the latest; the `latest`; or that of so many steps.
        network: the network of the run, if that is not one of Raceway's: a function, or `module:function`.
        trust: whether modules that the run names, of a network or an environment, may be imported.
    """
    path = Path(run)
    config = read_config(path)
    if not has_policy(config):
        raise ConfigError(
            f"the run in {path} does not say what its policy is: an older version made it. Train it anew."
        )
    checkpoint, weights = _found(Checkpoints(path / "checkpoints"), _which(which))
    check_run(checkpoint, config)
    check_size(config, config["policy"]["hidden"], weights)
    policy = _made(config, _network(config, network, trust=trust))
    check_fit(policy, weights, checkpoint.path)
    policy.load(weights)
    told = checkpoint.about
    about = {
        "run": str(path),
        "algorithm": config["algorithm"],
        "env": config["env"]["name"],
        "checkpoint": str(checkpoint.path),
        "steps": told["steps"],
        "mean_return": told.get("mean_return"),
    }
    return LoadedPolicy(policy, config, about, trust=trust)


def _which(which: str | int) -> str | int:
    if which in ("best", "latest") or (isinstance(which, int) and not isinstance(which, bool)):
        return which
    if isinstance(which, str) and which.isascii() and which.isdecimal():
        return which.lstrip("0") or "0"
    raise ConfigError(f"which must be best, latest, or a number of steps, not {which!r}")


def _spaces(config: Mapping[str, Any]) -> tuple[spaces.Space, spaces.Space]:
    return space_from_json(config["spaces"]["observation"]), space_from_json(config["spaces"]["action"])


def _made(config: Mapping[str, Any], network: Any) -> Policy:
    """Make the policy of a run, untrained."""
    how = config["policy"]
    if how["activation"] is not None:
        check_choice("activation", how["activation"], ACTIVATIONS)
    return make_policy(
        *_spaces(config), network, tuple(how["hidden"]), 0, kind=how["kind"], normalise=how["normalise"],
        num_slots=how["num_slots"], activation=how["activation"], shared=how["shared"],
    )  # fmt: skip


def _network(config: Mapping[str, Any], given: Any, *, trust: bool) -> Any:
    """Return the network of a run. What has to be imported is given again, or trusted."""
    saved = config["policy"]["network"]
    if given is not None:
        return imported(given)
    if saved in NETWORKS:
        return saved
    importable = ":" in saved and config["importable"]["network"]
    return imported(trusted("network", saved, importable=importable, trust=trust))


def _found(checkpoints: Checkpoints, which: str | int) -> tuple[Checkpoint, Weights]:
    """Return a checkpoint and its weights. If those of the best cannot be read, it is the latest that can."""
    try:
        found = checkpoints.find(which)
        return found, found.weights()
    except CheckpointError as error:
        if which != "best" or not checkpoints.all():
            raise
        other = checkpoints.newest_good(Checkpoint.weights)
        _log.warning("the best checkpoint cannot be read: %s. In its place is loaded %s", error, other[0].path)
        return other


def _form(space: spaces.Space) -> Any:
    """Return a space without its bounds, for comparing."""

    def bare(doc: Any) -> Any:
        if isinstance(doc, list):
            return [bare(part) for part in doc]
        return (
            {key: bare(part) for key, part in doc.items() if key not in ("low", "high")}
            if isinstance(doc, dict)
            else doc
        )

    return bare(space_to_json(space))
