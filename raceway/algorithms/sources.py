"""Sources: where the batches of an algorithm come from. An algorithm names one in its registration.

    @algorithm("ppo", Config)                        rollouts: fragments, whole episodes or tasks, as its config says
    @algorithm("bc", Config, source=DatasetSource)   minibatches of a dataset
    @algorithm("es", Config, source=PerturbationSource)
                                                     totals of episodes with perturbed weights

Training creates the source, spawns its workers, and gives the plan its stream. A further kind of source is a further
class, and training does not change.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from raceway.agents import Agent
from raceway.datasets import Dataset, open_dataset
from raceway.datasets.dataset import check_spaces
from raceway.datasets.opening import absolute_source
from raceway.engine.base import Actor
from raceway.envs import EnvSettings, Slots
from raceway.errors import ConfigError
from raceway.flow import ParIter
from raceway.ops import (
    DatasetReader,
    DatasetSettings,
    PerturbationSettings,
    PerturbationWorker,
    ReportMetrics,
    RolloutSettings,
    RolloutWorker,
    UpdateWeights,
    parallel_dataset,
    parallel_rollouts,
)
from raceway.ops.update_report import ReportUpdates
from raceway.rl import Batch
from raceway.rollouts.episode_reports import EpisodeCallbacks

if TYPE_CHECKING:
    from raceway.algorithms.registry import Algorithm

WorkerCall = tuple[Callable[..., Any], tuple[Any, ...]]
"""The class of a worker, and the arguments that it is created with."""


class Source(ABC):
    """Where the batches of a run come from.

    Args:
        cfg: the config of the run, as it was passed.
    """

    name: ClassVar[str]
    """What it supplies, in one word: part of the names of workers and of times."""
    metrics: ClassVar[str]
    """The group of its metrics."""
    acts: ClassVar[bool] = True
    """Whether its workers act in environments: then they are sent weights, and their number follows from the cost of an
    environment step."""
    joint: ClassVar[bool] = False
    """Whether the policies of several agents can share it."""

    settings: Any
    """What its workers are created with; set by `prepare`."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg
        """The config, with the settings filled in that the data determines."""

    @abstractmethod
    def prepare(
        self, algorithm: Algorithm, cfg: Any, env: EnvSettings, slots: Slots, callbacks: EpisodeCallbacks | None
    ) -> None:
        """Prepare for a run, and refuse an environment that does not fit.

        Args:
            algorithm: the algorithm.
            cfg: the config, adapted to the environment.
            env: the environment.
            slots: an instance of it.
            callbacks: what is called at the end of every episode.
        """

    @abstractmethod
    def show_data(self, agent: Agent) -> None:
        """Let an untrained agent observe the data that it is going to be trained on, as far as there is some."""

    @abstractmethod
    def worker(self, name: str) -> WorkerCall:
        """Return how a worker is created."""

    @abstractmethod
    def stream(
        self, workers: Sequence[Actor], weights: UpdateWeights, failure_policy: Mapping[str, Any]
    ) -> ParIter[Batch]:
        """Return the stream of batches.

        Args:
            workers: the actors of its workers.
            weights: sends weights to workers that act.
            failure_policy: failure policy of the workers, as arguments of `on_failure`.
        """

    @abstractmethod
    def report(self) -> ReportMetrics:
        """Return the operator that turns stats into rows of metrics."""


class RolloutSource(Source):
    """Rollouts: what workers collect in environments with the current policy."""

    name, metrics = "rollouts", "rollout"
    joint = True
    settings: RolloutSettings

    def prepare(
        self, algorithm: Algorithm, cfg: Any, env: EnvSettings, slots: Slots, callbacks: EpisodeCallbacks | None
    ) -> None:
        """Set the settings of the rollout workers."""
        self.settings = dataclasses.replace(
            algorithm.rollouts(cfg, env), repeats_from_seed=slots.repeats_from_seed, episode_callbacks=callbacks
        )

    def show_data(self, agent: Agent) -> None:
        """Do nothing: rollouts are not collected yet."""

    def worker(self, name: str) -> WorkerCall:
        """Return how a rollout worker is created."""
        return RolloutWorker, (self.settings, name)

    def stream(
        self, workers: Sequence[Actor], weights: UpdateWeights, failure_policy: Mapping[str, Any]
    ) -> ParIter[Batch]:
        """Return the stream of rollouts.

        A restarted worker gets the current weights, and collects the same rollouts that the dead one would have.
        """
        rollouts = parallel_rollouts(workers, self.settings)
        return rollouts.on_failure("restart", on_restart=weights.send_to, **failure_policy)

    def report(self) -> ReportMetrics:
        """Return the operator that reports environment steps and episodes."""
        callbacks = self.settings.episode_callbacks
        return ReportMetrics(token=callbacks.token if callbacks else "")


class PerturbationSource(RolloutSource):
    """Perturbations: the totals of episodes that workers roll out with perturbed weights; see `ops.perturbations`."""

    joint = False
    settings: PerturbationSettings

    def worker(self, name: str) -> WorkerCall:
        """Return how a worker is created."""
        return PerturbationWorker, (self.settings, name)


class DatasetSource(Source):
    """Minibatches of a dataset, `cfg.dataset`. The environment is for evaluation only."""

    name = metrics = "dataset"
    acts = False
    settings: DatasetSettings

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._dataset: Dataset | None = None
        self._num_rows = 1
        if cfg.dataset is None:  # a plan can be shown without one
            self.cfg = dataclasses.replace(cfg, env=cfg.example_env if cfg.env is None else cfg.env)
            return
        self._dataset = open_dataset(cfg.dataset)
        self._num_rows = self._dataset.num_steps
        found = {} if cfg.env is not None else _recorded_env(self._dataset)
        self.cfg = dataclasses.replace(cfg, **found, dataset=absolute_source(cfg.dataset))

    def prepare(
        self, algorithm: Algorithm, cfg: Any, env: EnvSettings, slots: Slots, callbacks: EpisodeCallbacks | None
    ) -> None:
        """Set the settings of the readers, after checking that the dataset has the spaces of the environment."""
        self.settings = cfg.reading
        if self._dataset is not None:
            check_spaces(self._dataset, slots.observation_space, slots.action_space)
            self.settings.check_size(self._dataset)

    def show_data(self, agent: Agent) -> None:
        """Let the agent observe the dataset, which the source needs no longer."""
        dataset, self._dataset = self._dataset, None
        if dataset is not None:
            agent.observe_dataset(dataset.batches())

    def worker(self, name: str) -> WorkerCall:
        """Return how a reader is created."""
        return DatasetReader, (self.settings,)

    def stream(
        self, workers: Sequence[Actor], weights: UpdateWeights, failure_policy: Mapping[str, Any]
    ) -> ParIter[Batch]:
        """Return the stream of minibatches."""
        return parallel_dataset(workers, self.settings).on_failure("restart", **failure_policy)

    def report(self) -> ReportMetrics:
        """Return the operator that reports updates and epochs."""
        return ReportUpdates(self._num_rows)


def _recorded_env(dataset: Dataset) -> dict[str, Any]:
    """Return the environment that a dataset was recorded in, as settings. Nothing is imported that only it names."""
    env, kwargs = dataset.about.get("env"), dataset.about.get("env_kwargs")
    if not isinstance(env, str):
        raise ConfigError(f"the dataset {dataset.name} does not name its environment. Pass one: --env NAME")
    if ":" in env:
        raise ConfigError(
            f"the dataset {dataset.name} was recorded in {env!r}, whose module is not imported just because a file "
            f"names it. Pass it: --env {env}"
        )
    recorded = {"env": env, "env_kwargs": kwargs} if isinstance(kwargs, dict) and kwargs else {"env": env}
    return {**recorded, "last_action_and_reward": True} if dataset.about.get("last_action_and_reward") else recorded
