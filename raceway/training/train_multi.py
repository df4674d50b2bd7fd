"""`train_multi`: several policies in one environment, each trained by its own algorithm, as one flow.

rollouts of all agents -> split
    -> the batches of one policy -> the plan of its algorithm -> its metrics
    -> the batches of another    -> the plan of its algorithm -> its metrics
-> union_async
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from raceway.agents import Policy
from raceway.algorithms import Algorithm, Context, find_algorithm
from raceway.checks import check_int, check_positive
from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.envs import EnvSettings
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter, create, union_async
from raceway.machine import worker_compute_settings
from raceway.ops import ReportMetrics
from raceway.ops.multi_agent import GatheredRounds, MultiRolloutSettings, MultiRolloutWorker, Select
from raceway.rl import Batch
from raceway.rl.seeding import Purpose, derive_seed
from raceway.runs.merged_rows import RowMerger

MAX_ROWS = 10_000
"""Rows of metrics of each policy that a result holds, the latest ones."""
MAX_RETURNS = 100_000
"""Returns of each policy that a result holds, the latest ones."""


@dataclass
class Trainer:
    """The algorithm, config and context that train one policy."""

    algorithm: Algorithm
    cfg: Any
    context: Context
    report: ReportMetrics = field(default_factory=ReportMetrics)


@dataclass
class MultiResult:
    """Trained policies and metrics of a run."""

    policies: dict[str, Policy]
    metrics: dict[str, list[dict[str, Any]]]
    """The latest `MAX_ROWS` rows of each policy; training steps faster than its `metrics_interval` share a row."""
    returns: dict[str, list[float]]
    """The returns of the latest `MAX_RETURNS` episodes of all agents with a policy."""
    episodes: dict[str, int]
    """Number of all episodes of agents with a policy."""
    seconds: float = 0.0


class _PolicyRecord:
    """The metrics of one policy. Its size is bounded, as a run may last for days."""

    def __init__(self, metrics_interval: float) -> None:
        self._merger = RowMerger(metrics_interval)
        self.rows: deque[dict[str, Any]] = deque(maxlen=MAX_ROWS)
        self.returns: deque[float] = deque(maxlen=MAX_RETURNS)
        self.episodes = 0

    def add(self, metrics: dict[str, Any]) -> None:
        """Add the metrics of a training step."""
        self.returns.extend(metrics["returns"])
        self.episodes += len(metrics["returns"])
        self._add_row(self._merger.add(metrics))

    def flush(self) -> None:
        """Add the row of the training steps since the last one."""
        self._add_row(self._merger.take())

    def _add_row(self, row: dict[str, Any] | None) -> None:
        if row is not None:
            self.rows.append(row)


def multi_trainer_plan(
    rollouts: ParIter[Mapping[str, Batch]], trainers: Mapping[str, Trainer], buffer: int
) -> Iter[tuple[str, Any]]:
    """Return the plan, a flow of policy names and rows of metrics.

    Args:
        rollouts: the batches of all policies.
        trainers: one for every policy.
        buffer: rounds by which one branch may be ahead of another, at least the rounds that a branch needs for a batch.
    """
    branches = rollouts.gather_sync().split(*trainers, buffer=buffer)
    plans: dict[str, Any] = {}
    for (name, trainer), branch in zip(trainers.items(), branches, strict=True):
        actor = SimpleNamespace(policy=trainer.context.learner.policy)
        source: Any = GatheredRounds(branch.for_each(Select(name)), actor)
        plan = trainer.algorithm.plan(source, trainer.cfg, trainer.context)
        plans[name] = plan.for_each(trainer.report).for_each(partial(_with_name, name))
    return union_async(**plans)


def _with_name(name: str, row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return name, row


class MultiTraining:
    """A run that trains several policies."""

    def __init__(
        self,
        env: str | Callable[..., Any],
        policies: Mapping[str, str] | Callable[[str], str],
        trainers: Mapping[str, tuple[str, Mapping[str, Any]]],
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        num_envs: int = 8,
        num_shards: int = 1,
        fragment_steps: int = 32,
        seed: int = 0,
        engine: str = "inline",
        num_workers: int = 1,
    ) -> None:
        self.env = MultiAgentSettings(env, policies, env_kwargs or {})
        for name, number in (("num_envs", num_envs), ("num_shards", num_shards), ("fragment_steps", fragment_steps)):
            check_int(name, number)
        if num_envs % num_shards:
            raise ConfigError(f"num_envs {num_envs} is not a multiple of num_shards {num_shards}. Change one of them.")
        spaces = self.env.spaces()
        if set(spaces) != set(trainers):
            raise ConfigError(
                f"the agents use the policies {sorted(spaces)}, but there are trainers for {sorted(trainers)}: every "
                "policy needs one."
            )
        self.algorithms = {name: find_algorithm(trainers[name][0]) for name in sorted(trainers)}
        self.configs: dict[str, Any] = {}
        for name, algorithm in self.algorithms.items():
            algorithm.check_actions(spaces[name][1], f"policy {name!r} of {self.env.name}")
            common = {"env": str(self.env.name), "num_envs": num_envs, "num_shards": num_shards, "seed": seed}
            self.configs[name] = algorithm.config(**{**common, **trainers[name][1], "fragment_steps": fragment_steps})
        unused_env = EnvSettings(self.env.name)  # policies are created from spaces; no such environment is created
        policy_settings = {
            name: replace(cfg.rollouts(unused_env), slots_per_shard=1) for name, cfg in self.configs.items()
        }
        self.rollouts = MultiRolloutSettings(
            env=self.env,
            num_shards=num_shards,
            slots_per_shard=num_envs // num_shards,
            fragment_steps=fragment_steps,
            policies=policy_settings,
            seed=seed,
        )
        self.engine, self.num_workers = engine, check_int("num_workers", num_workers)
        self.policies = self.rollouts.make_policies(derive_seed(seed, Purpose.WEIGHTS))

    @contextmanager
    def open_flow(self) -> Iterator[tuple[Iter[tuple[str, Any]], dict[str, Trainer]]]:
        """Start the actors, and yield the flow and the trainers."""
        with worker_compute_settings(), make_engine(self.engine) as engine:
            names = [f"rollouts-{number}" for number in range(self.num_workers)]
            workers = [engine.spawn(MultiRolloutWorker, (self.rollouts, name), name=name) for name in names]
            trainers = {name: self._trainer(name, workers, engine) for name in self.algorithms}
            steps = self.rollouts.num_shards * self.rollouts.slots_per_shard * self.rollouts.fragment_steps
            rounds = max(-(-getattr(cfg, "batch_steps", 1) // steps) for cfg in self.configs.values())
            yield multi_trainer_plan(self._source(workers, trainers), trainers, rounds + 1), trainers

    def _trainer(self, name: str, workers: Sequence[Actor], engine: Engine) -> Trainer:
        cfg = self.configs[name]
        return Trainer(self.algorithms[name], cfg, Context(cfg.learner(self.policies[name]), workers, engine, name))

    def _source(self, workers: Sequence[Actor], trainers: Mapping[str, Trainer]) -> ParIter[Any]:
        senders = [trainer.context.weights() for trainer in trainers.values()]
        for sender in senders:
            sender.send(workers)
        settings = self.rollouts
        rollouts = create(workers, "sample", num_shards=settings.num_shards, seed=settings.seed)
        send_weights = lambda worker: [sender.send_to(worker) for sender in senders]  # noqa: E731
        return rollouts.on_failure("restart", errors=False, on_restart=send_weights)

    def run(self, total_timesteps: int | None = None, stop_seconds: float | None = None) -> MultiResult:
        """Train until one of the policies has used `total_timesteps` of its agents' steps, or for `stop_seconds`."""
        if total_timesteps is None and stop_seconds is None:
            raise ConfigError("give total_timesteps or stop_seconds: otherwise training would never end")
        if stop_seconds is not None:
            check_positive("stop_seconds", stop_seconds)
        records = {name: _PolicyRecord(cfg.metrics_interval) for name, cfg in self.configs.items()}
        began, seconds = time.perf_counter(), 0.0
        with self.open_flow() as (flow, trainers), flow.start(wait=True) as run:
            for name, row in run:
                records[name].add(row)
                seconds = time.perf_counter() - began
                if total_timesteps is not None and trainers[name].report.timesteps >= total_timesteps:
                    break
                if stop_seconds is not None and seconds >= stop_seconds:
                    break
        return self._result(records, seconds)

    def _result(self, records: Mapping[str, _PolicyRecord], seconds: float) -> MultiResult:
        for record in records.values():
            record.flush()
        return MultiResult(
            self.policies,
            metrics={name: list(record.rows) for name, record in records.items()},
            returns={name: list(record.returns) for name, record in records.items()},
            episodes={name: record.episodes for name, record in records.items()},
            seconds=seconds,
        )


def train_multi(
    env: str | Callable[..., Any],
    policies: Mapping[str, str] | Callable[[str], str],
    trainers: Mapping[str, tuple[str, Mapping[str, Any]]],
    *,
    total_timesteps: int | None = None,
    stop_seconds: float | None = None,
    **settings: Any,
) -> MultiResult:
    """Train several policies in one environment.

    Args:
        env: a module with a `parallel_env` of PettingZoo's API, `module:function`, or a function that creates one.
        policies: the name of every agent's policy: a mapping from names of agents, or a function of them.
        trainers: the algorithm of every policy, and its settings.
        total_timesteps: stop when a policy has used this many steps of its agents.
        stop_seconds: stop after this time.
        settings: `env_kwargs`, `num_envs`, `num_shards`, `fragment_steps`, `seed`, `engine`, `num_workers`.
    """
    return MultiTraining(env, policies, trainers, **settings).run(total_timesteps, stop_seconds)
