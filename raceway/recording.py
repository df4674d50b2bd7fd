"""`record`: a dataset of whole episodes that a trained policy acts in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium import spaces

from raceway.datasets import Dataset, DatasetWriter
from raceway.datasets.folder import check_new, read_folder
from raceway.datasets.opening import RUN_DATASET
from raceway.errors import ConfigError
from raceway.loaded_policy import load
from raceway.machine import worker_compute_settings
from raceway.rl import Batch
from raceway.rollouts.episode_recorder import EpisodeRecorder
from raceway.rollouts.evaluation import evaluate
from raceway.runs.trained_policies import TrainedPolicies
from raceway.runs.trained_policy import TrainedPolicy


def record(
    run: str | Path | TrainedPolicy | TrainedPolicies,
    path: str | Path | None = None,
    *,
    num_episodes: int = 100,
    checkpoint: str | int = "best",
    env: Any = None,
    seed: int = 0,
    deterministic: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> Dataset:
    """Record whole episodes of a trained policy in fresh environments, as a new dataset.

    They are the episodes of `TrainedPolicy.evaluate` with the same arguments, in the order in which they end. If
    anything fails, nothing is written.

    Args:
        run: a run directory, or a policy that `load` or `train` returned.
        path: the folder of the dataset, which must not exist; by default `dataset` in the run directory.
        num_episodes: number of episodes; of Atari games, number of games, whose lives are episodes of the dataset.
        checkpoint: the checkpoint of a run directory, as in `load`.
        env: another environment than that of the run; see `TrainedPolicy.env_settings`.
        seed: seed of the episodes and of sampled actions.
        deterministic: take the most likely action, or the one with the highest Q-value; else sample.
        on_progress: called with the number of finished episodes, whenever some finish.
    """
    policy = run if isinstance(run, TrainedPolicy | TrainedPolicies) else load(run, checkpoint)
    if not isinstance(policy, TrainedPolicy):
        raise ConfigError("a dataset has the episodes of one agent, and this run has several. Record another run.")
    if path is None and policy.about["run"] is None:
        raise ConfigError("this policy has no run directory for its dataset. Pass a path.")
    target = check_new(Path(policy.about["run"]) / RUN_DATASET if path is None else path)
    settings = policy.env_settings(env)
    about = {
        **{name: policy.about[name] for name in ("algorithm", "run", "checkpoint", "steps", "unit")},
        "weights_sha256": policy.sha256(),
        "env": settings.name,
        "env_kwargs": dict(settings.kwargs),
        **({"last_action_and_reward": True} if settings.last_action_and_reward else {}),
        "seed": seed,
        "deterministic": deterministic,
    }
    writers: list[DatasetWriter] = []
    with ExitStack() as stack:
        stack.enter_context(worker_compute_settings())

        def begin(observation_space: spaces.Space, action_space: spaces.Space) -> None:
            policy.check_spaces(observation_space, action_space)
            writers.append(stack.enter_context(DatasetWriter(target, observation_space, action_space, about)))

        def add(episode: Batch) -> None:
            writers[0].add(episode)

        evaluate(
            policy.policy, settings, num_episodes, seed=seed, deterministic=deterministic, check=begin,
            clip_actions=policy.clip_actions, on_progress=on_progress, explorer=policy.explorer,
            make_evaluator=partial(EpisodeRecorder, on_episode=add),
        )  # fmt: skip
    return read_folder(target)
