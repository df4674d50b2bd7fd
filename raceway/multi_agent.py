"""`train_multi`: several policies in one environment, each trained by an algorithm of its own, as one flow.

rollouts of all agents -> split
    -> what is of one policy -> the plan of its algorithm -> its figures
    -> what is of another    -> the plan of its algorithm -> its figures
as they come
"""

from __future__ import annotations

import time
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
from raceway.engine.base import Actor
from raceway.envs import EnvSettings, Purpose, seed_of
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter, create, union_async
from raceway.machine import as_in_a_worker
from raceway.ops import ReportMetrics
from raceway.ops.multi_agent import Gathered, MultiRolloutSettings, MultiRolloutWorker, Select
from raceway.rl import Batch


@dataclass
class Trainer:
    """What trains one policy."""

    algorithm: Algorithm
    cfg: Any
    context: Context
    report: ReportMetrics = field(default_factory=ReportMetrics)


@dataclass
class MultiResult:
    """What came of a run."""

    policies: dict[str, Policy]
    metrics: dict[str, list[dict[str, Any]]]
    """One entry for every training step of each policy."""
    returns: dict[str, list[float]]
    """The return of every episode of every agent, by its policy."""
    seconds: float = 0.0


def two_trainers(
    rollouts: ParIter[Mapping[str, Batch]], trainers: Mapping[str, Trainer], buffer: int
) -> Iter[tuple[str, Any]]:
    """Return the plan: of each policy the name and a line of metrics, as they come.

    One may be ahead of another by so many rounds (`buffer`): at least as many as any of them needs for one batch.
    """
    branches = rollouts.gather_sync().split(*trainers, buffer=buffer)
    plans: dict[str, Any] = {}
    for (name, one), branch in zip(trainers.items(), branches, strict=True):
        player = SimpleNamespace(policy=one.context.learner.policy)
        source: Any = Gathered(branch.for_each(Select(name)), player)
        plan = one.algorithm.plan(source, one.cfg, one.context)
        plans[name] = plan.for_each(one.report).for_each(partial(_named, name))
    return union_async(**plans)


def _named(name: str, row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return name, row


class MultiTraining:
    """One run with several policies."""

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
            raise ConfigError(f"num_envs {num_envs} cannot be divided into {num_shards} shards. Make it a multiple.")
        spaces = self.env.spaces()
        if set(spaces) != set(trainers):
            raise ConfigError(
                f"the agents are played by {sorted(spaces)}, and there are trainers for {sorted(trainers)}: every "
                "policy needs one."
            )
        self.algorithms = {name: find_algorithm(trainers[name][0]) for name in sorted(trainers)}
        self.configs: dict[str, Any] = {}
        for name, one in self.algorithms.items():
            one.check_actions(spaces[name][1], f"policy {name!r} of {self.env.name}")
            same = {"env": str(self.env.name), "num_envs": num_envs, "num_shards": num_shards, "seed": seed}
            self.configs[name] = one.config(**{**same, **trainers[name][1], "fragment_steps": fragment_steps})
        nowhere = EnvSettings(self.env.name)  # policies are made from spaces: nothing is made of this
        made = {name: replace(cfg.rollouts(nowhere), slots_per_shard=1) for name, cfg in self.configs.items()}
        self.rollouts = MultiRolloutSettings(
            env=self.env,
            num_shards=num_shards,
            slots_per_shard=num_envs // num_shards,
            fragment_steps=fragment_steps,
            policies=made,
            seed=seed,
        )
        self.engine, self.num_workers = engine, check_int("num_workers", num_workers)
        self.policies = self.rollouts.make_policies(seed_of(seed, Purpose.WEIGHTS))

    @contextmanager
    def planned(self) -> Iterator[tuple[Iter[tuple[str, Any]], dict[str, Trainer]]]:
        """Give the plan with its actors, and the trainers."""
        with as_in_a_worker(), make_engine(self.engine) as engine:
            names = [f"rollouts-{number}" for number in range(self.num_workers)]
            workers = [engine.spawn(MultiRolloutWorker, (self.rollouts, name), name=name) for name in names]
            trainers = {name: self._trainer(name, workers, engine) for name in self.algorithms}
            steps = self.rollouts.num_shards * self.rollouts.slots_per_shard * self.rollouts.fragment_steps
            rounds = max(-(-getattr(cfg, "batch_steps", 1) // steps) for cfg in self.configs.values())
            yield two_trainers(self._source(workers, trainers), trainers, rounds + 1), trainers

    def _trainer(self, name: str, workers: Sequence[Actor], engine: Any) -> Trainer:
        cfg = self.configs[name]
        return Trainer(self.algorithms[name], cfg, Context(cfg.learner(self.policies[name]), workers, engine, name))

    def _source(self, workers: Sequence[Actor], trainers: Mapping[str, Trainer]) -> ParIter[Any]:
        senders = [one.context.weights() for one in trainers.values()]
        for sender in senders:
            sender.send(workers)
        settings = self.rollouts
        many = create(workers, "sample", num_shards=settings.num_shards, seed=settings.seed)
        restarted = lambda worker: [sender.send_to(worker) for sender in senders]  # noqa: E731
        return many.on_failure("restart", errors=False, on_restart=restarted)

    def run(self, total_timesteps: int | None = None, stop_seconds: float | None = None) -> MultiResult:
        """Train until one of the policies has used so many steps of its agents, or the time is over."""
        if total_timesteps is None and stop_seconds is None:
            raise ConfigError("give total_timesteps or stop_seconds: otherwise it would never end")
        if stop_seconds is not None:
            check_positive("stop_seconds", stop_seconds)
        names = list(self.algorithms)
        result = MultiResult(self.policies, {name: [] for name in names}, {name: [] for name in names})
        began = time.perf_counter()
        with self.planned() as (flow, trainers), flow.start() as run:
            for name, row in run:
                result.metrics[name].append(row)
                result.returns[name] += row["returns"]
                result.seconds = time.perf_counter() - began
                if total_timesteps is not None and trainers[name].report.timesteps >= total_timesteps:
                    break
                if stop_seconds is not None and result.seconds >= stop_seconds:
                    break
        return result


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
        env: a module with a `parallel_env` of PettingZoo's API, `module:function`, or a function that makes one.
        policies: the policy of every agent: by its name, or a function of that.
        trainers: of every policy the algorithm, and settings of it.
        total_timesteps: end when a policy has used so many steps of its agents.
        stop_seconds: end after so much time.
        settings: `env_kwargs`, `num_envs`, `num_shards`, `fragment_steps`, `seed`, `engine`, `num_workers`.
    """
    return MultiTraining(env, policies, trainers, **settings).run(total_timesteps, stop_seconds)
