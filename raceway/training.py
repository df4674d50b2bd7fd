"""`train`: from a name and some settings to a trained policy, with a folder that tells of it."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from raceway.algorithms import Algorithm, Context, find_algorithm
from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.envs import EnvSettings, Purpose, Slots, make_slots, seed_of
from raceway.errors import ConfigError
from raceway.ops import ReportMetrics, RolloutWorker, parallel_rollouts
from raceway.play import choose_workers, measure_step
from raceway.policies import Policy
from raceway.runs.directory import RunDirectory
from raceway.runs.display import Watcher

_log = logging.getLogger(__name__)

_PRELOAD = ["torch", "gymnasium", "raceway.ops"]  # imported once, by the launcher, for all workers


@dataclass
class Result:
    """What came of a run."""

    summary: dict[str, Any]
    """What `--json` prints."""
    policy: Policy
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """One entry an iteration."""
    returns: list[float] = field(default_factory=list)
    """The return of every episode, in the order of their iterations."""

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return Path(self.summary["run_dir"])


def train(algorithm: str = "reinforce", *, watchers: Sequence[Watcher] = (), **settings: Any) -> Result:
    """Train a policy.

    Args:
        algorithm: its name.
        watchers: told of the beginning, of every iteration, and of the end.
        settings: of the algorithm, as `raceway train <algorithm> --help` lists them.
    """
    found = find_algorithm(algorithm)
    return Training(found, found.settings(**settings), watchers).run()


class Training:
    """One run, from its settings to its summary."""

    def __init__(self, algorithm: Algorithm, cfg: Any, watchers: Sequence[Watcher] = ()) -> None:
        self.algorithm, self.watchers = algorithm, watchers
        self.env = EnvSettings(cfg.env, cfg.env_kwargs, cfg.vector).checked()
        slots = make_slots(self.env, 1)
        try:
            algorithm.check_actions(slots.action_space, self.env.name)
            self.cfg = dataclasses.replace(cfg.for_env(slots), network=_network(cfg.network))
            spaces = slots.observation_space, slots.action_space
            self.rollouts = dataclasses.replace(self.cfg.rollouts(self.env), repeats=slots.repeats)
            self.policy = self.rollouts.make_policy(*spaces, seed_of(cfg.seed, Purpose.WEIGHTS))
        finally:
            slots.close()
        self.spaces = spaces
        self.num_workers, self.why = self._num_workers(slots)
        self.learner = self.cfg.learner(self.policy)
        self.report = ReportMetrics()
        self.result = Result({}, self.policy)

    def _num_workers(self, slots: Slots) -> tuple[int, str]:
        cfg = self.cfg
        if cfg.num_workers != "auto":
            return cfg.num_workers, ""
        if cfg.engine == "inline":
            return 0, ""
        cost = measure_step(self.env, slots, cfg.num_envs // cfg.num_shards)
        return choose_workers(cost, num_cores(), cfg.num_shards)

    def run(self) -> Result:
        """Train until a limit is reached."""
        cfg = self.cfg
        name = f"{self.algorithm.name}-{plain_name(self.env.name)}-{cfg.seed}"
        with ExitStack() as stack:
            directory = RunDirectory(cfg.run_dir, name)
            stack.callback(directory.close)
            directory.describe(self.algorithm.name, dataclasses.asdict(cfg), num_workers=self.num_workers)
            stack.enter_context(one_thread())
            for watcher in self.watchers:
                stack.enter_context(watcher)
                watcher.begin(self, directory.path)
            engine = stack.enter_context(self._engine())
            workers = self._spawn(engine)
            began = time.perf_counter()
            self.report.start()
            stopped_by = "interrupt"
            try:
                stopped_by = self._iterate(workers, directory, began)
            except KeyboardInterrupt:
                _log.info("interrupted")
            self._summarise(directory, stopped_by, time.perf_counter() - began)
            for watcher in self.watchers:
                watcher.end(self.result)
        return self.result

    @contextmanager
    def planned(self, *, run: bool) -> Iterator[Any]:
        """Give the plan with its actors; if it is not to be run, they live here."""
        with one_thread(), self._engine() if run else make_engine("inline") as engine:
            yield self.flow(self._spawn(engine))

    def _engine(self) -> Any:
        if self.num_workers == 0 or self.cfg.engine == "inline":
            return make_engine("inline")
        options: dict[str, dict[str, Any]] = {"process": {"preload": _PRELOAD}, "ray": {"address": self.cfg.address}}
        return make_engine(self.cfg.engine, **options[self.cfg.engine])

    def _spawn(self, engine: Any) -> list[Actor]:
        names = [f"rollouts-{number}" for number in range(max(1, self.num_workers))]
        return [engine.spawn(RolloutWorker, (self.rollouts, name), name=name) for name in names]

    def flow(self, workers: Sequence[Actor]) -> Any:
        """Return the plan of the run."""
        context = Context(self.learner, workers, workers[0].engine)
        weights = context.weights()
        # An actor that dies comes back with the weights of the others. What it plays then is what it would have played.
        rollouts = parallel_rollouts(workers, self.rollouts).on_failure(
            "restart", errors=False, on_restart=weights.send_to
        )
        plan = self.algorithm.plan(rollouts, self.cfg, context)
        weights.send(workers)
        return plan.for_each(self.report)

    def _iterate(self, workers: Sequence[Actor], directory: RunDirectory, began: float) -> str:
        """Train, and return which limit was reached."""
        with self.flow(workers).start() as run:
            for row in run:
                directory.add(row)
                self.result.metrics.append(row)
                self.result.returns += row["returns"]
                for watcher in self.watchers:
                    watcher.iteration(row)
                if limit := self._limit(time.perf_counter() - began):
                    return limit
        return "end of the stream"

    def _limit(self, seconds: float) -> str | None:
        cfg, report = self.cfg, self.report
        most = cfg.num_iterations
        if cfg.stop_return is not None and report.full and report.mean_return >= cfg.stop_return:
            return "stop_return"
        if cfg.total_timesteps is not None and report.timesteps >= cfg.total_timesteps:
            return "total_timesteps"
        if most is not None and report.iterations >= most:
            return "iterations"
        if cfg.stop_seconds is not None and seconds >= cfg.stop_seconds:
            return "stop_seconds"
        return None

    def _summarise(self, directory: RunDirectory, stopped_by: str, seconds: float) -> None:
        report = self.report
        self.result.summary = {
            "algorithm": self.algorithm.name,
            "env": self.env.name,
            "seed": self.cfg.seed,
            "engine": self.cfg.engine,
            "num_workers": self.num_workers,
            "iterations": report.iterations,
            "timesteps": report.timesteps,
            "episodes": report.episodes,
            "wall_seconds": since_start(),
            "train_seconds": seconds,
            "fps": report.timesteps / seconds,
            "mean_return": report.mean_return,
            "best_mean_return": report.best,
            "stopped_by": stopped_by,
            "weights_sha256": self.policy.sha256(),
            "run_dir": str(directory.path),
        }
        directory.write("summary.json", self.result.summary)


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread in this process: what is played here must be what workers would play."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def since_start() -> float:
    """Return the seconds since this process began, imports included."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # no Linux
        return time.perf_counter() - _IMPORTED


_IMPORTED = time.perf_counter()


def plain_name(name: str) -> str:
    """Return an environment's name as it can be part of a folder's."""
    return name.replace(":", ".").replace("/", "-")


def _network(network: Any) -> Any:
    """Return a network's function, found by `module:function`."""
    if not isinstance(network, str) or ":" not in network:
        return network
    module, _, name = network.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"network {network!r} cannot be found: {error}. Give module:function.") from error
