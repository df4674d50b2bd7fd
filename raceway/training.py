"""`train`: from a name and some settings to a trained policy, with a folder that tells of it."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raceway.algorithms import Algorithm, Context, find_algorithm
from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.envs import EnvSettings, Purpose, Slots, make_slots, seed_of
from raceway.errors import ConfigError, RacewayError, known
from raceway.ops import ReportMetrics, RolloutWorker, parallel_rollouts
from raceway.play import choose_workers, measure_step
from raceway.policies import Policy
from raceway.policies.networks import imported
from raceway.resuming import Start, start_of
from raceway.rl.space_json import space_to_json
from raceway.runs.checkpoints import Checkpoints
from raceway.runs.directory import RunDirectory, is_plain, read_metrics
from raceway.runs.display import Watcher
from raceway.runs.evaluations import Evaluations
from raceway.runs.machine import num_cores, one_thread, since_start
from raceway.runs.saving import Saver
from raceway.runs.stopping import StopSignals
from raceway.runs.tensorboard import Events

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


def train(
    algorithm: str = "reinforce", *, watchers: Sequence[Watcher] = (), resume: str | None = None, **settings: Any
) -> Result:
    """Train a policy.

    Args:
        algorithm: its name.
        watchers: told of the beginning, of every iteration, of checkpoints, and of the end.
        resume: `auto` to go on with the run in `run_dir`, if there is one.
        settings: of the algorithm, as `raceway train <algorithm> --help` lists them.
    """
    found = find_algorithm(algorithm)
    if resume is not None:
        known("way to resume", resume, ("auto",))
        if settings.get("run_dir") is None:
            raise ConfigError("--resume auto goes on with the run in --run-dir. Give that too.")
        path = Path(settings["run_dir"])
        if Checkpoints(path / "checkpoints").all():
            return Training.again(settings.pop("run_dir"), found, watchers=watchers, **settings).run()
        RunDirectory.discard(path)
    return Training(found, found.settings(**settings), watchers).run()


def resume(
    run: str | Path, *, watchers: Sequence[Watcher] = (), trust: bool = False, env: Any = None, network: Any = None,
    **settings: Any,
) -> Result:  # fmt: skip
    """Go on with a run that was stopped, from its latest checkpoint.

    Args:
        run: its folder.
        watchers: told of the beginning, of every iteration, of checkpoints, and of the end.
        trust: whether modules that the run names, of an environment or a network, may be imported.
        env: the environment, if that is not one that Gymnasium knows by itself.
        network: the network, if that is a function.
        settings: that are to be others from now on. Which may be is said if one may not.
    """
    given = {name: value for name, value in (("env", env), ("network", network)) if value is not None}
    return Training.again(run, watchers=watchers, trust=trust, **given, **settings).run()


class Training:
    """One run, from its settings to its summary."""

    def __init__(
        self, algorithm: Algorithm, cfg: Any, watchers: Sequence[Watcher] = (), *, start: Start | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.algorithm, self.watchers, self.start, self._clock = algorithm, watchers, start, clock
        self.asked = cfg
        self.env = EnvSettings(cfg.env, cfg.env_kwargs, cfg.vector).checked()
        slots = make_slots(self.env, 1)
        try:
            algorithm.check_actions(slots.action_space, self.env.name)
            self.cfg = dataclasses.replace(cfg.for_env(slots), network=imported(cfg.network))
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
        self.evaluations = Evaluations(
            self.learner, self.env, cfg.eval_every, cfg.eval_episodes, seed=cfg.seed, clip_actions=cfg.clip_actions
        )

    @classmethod
    def again(
        cls, run: str | Path, algorithm: Algorithm | None = None, *, watchers: Sequence[Watcher] = (),
        trust: bool = False, **settings: Any,
    ) -> Training:  # fmt: skip
        """Return the training that goes on with a run. If an algorithm is given, it must be that one's."""
        found, cfg, start = start_of(run, algorithm, settings, trust=trust)
        return cls(found, cfg, watchers, start=start)

    def _num_workers(self, slots: Slots) -> tuple[int, str]:
        cfg = self.cfg
        if cfg.num_workers != "auto":
            return cfg.num_workers, ""
        if cfg.engine == "inline":
            return 0, ""
        cost = measure_step(self.env, slots, cfg.num_envs // cfg.num_shards)
        return choose_workers(cost, num_cores(), cfg.num_shards)

    def run(self) -> Result:
        """Train until a limit is reached, or a signal comes."""
        with ExitStack() as stack:
            directory = self._directory(stack)
            self.saver = Saver(
                Checkpoints(directory.path / "checkpoints", self.cfg.keep), self.cfg.save_every, self.cfg.save_seconds,
                self._clock,
            )  # fmt: skip
            stack.enter_context(one_thread())
            signals = stack.enter_context(StopSignals())
            for watcher in self.watchers:
                stack.enter_context(watcher)
                watcher.begin(self, directory.path)
            engine = stack.enter_context(self._engine())
            workers = self._spawn(engine)
            signals.install()
            stopped_by = "interrupt"
            try:
                stopped_by = self._iterate(workers, directory, signals)
            except KeyboardInterrupt:
                stopped_by = signals.reason or stopped_by
                _log.info("stopped in the middle of an iteration: %s", stopped_by)
            except RacewayError as error:
                if self.saver.last is not None:
                    error.add_note(f"What was trained before is saved. Go on with: raceway resume {directory.path}")
                raise
            self._summarise(directory, stopped_by)
            for watcher in self.watchers:
                watcher.end(self.result)
        return self.result

    def _directory(self, stack: ExitStack) -> RunDirectory:
        """Return the folder of the run, with all that is known of it so far."""
        cfg, asked, start = self.cfg, self.asked, self.start
        config = {**dataclasses.asdict(cfg), "network": asked.network, "env": self.env.name}
        if start is not None:
            about = start.checkpoint.about
            directory = RunDirectory.again(cfg.run_dir)
            stack.callback(directory.close)
            start.check()
            directory.rewind(about["iterations"])
            directory.describe_again(config, about["steps"], num_workers=self.num_workers)
            self.result.metrics = read_metrics(directory.path)
            self.result.returns = [value for row in self.result.metrics for value in row["returns"]]
        else:
            name = f"{self.algorithm.name}-{plain_name(self.env.name)}-{cfg.seed}"
            directory = RunDirectory.new(cfg.run_dir, name)
            stack.callback(directory.close)
            seen, done = map(space_to_json, self.spaces)
            directory.describe(
                self.algorithm.name,
                config,
                num_workers=self.num_workers,
                policy={**self.rollouts.about_policy, "network": asked.network},
                spaces={"observation": seen, "action": done},
                env={"name": self.env.name, "kwargs": self.env.kwargs, "vector": self.env.vector},
                importable={name: is_plain(getattr(asked, name)) for name in ("env", "network", "env_kwargs")},
            )
        self.events = stack.enter_context(Events(directory.path, start.steps if start else None))
        return directory

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
        budget, deadline = self.cfg.max_restarts, self.cfg.item_deadline
        window = max(60.0, (budget + 1) * (deadline or 0))  # or one that always hangs would be restarted for ever
        bears = {"errors": False, "budget": budget, "deadline": deadline, "window": window}
        context = Context(self.learner, workers, workers[0].engine, bears=bears)
        weights = context.weights()
        # An actor that dies comes back with the weights of the others. What it plays then is what it would have played.
        rollouts = parallel_rollouts(workers, self.rollouts).on_failure("restart", on_restart=weights.send_to, **bears)
        plan = self.algorithm.plan(rollouts, self.cfg, context)
        weights.send(workers)
        return plan.for_each(self.report)

    def _iterate(self, workers: Sequence[Actor], directory: RunDirectory, signals: StopSignals) -> str:
        """Train, and return which limit was reached."""
        with self._started(self.flow(workers), directory) as run:
            limit = self._limit() if self.start is not None else None
            while limit is None and (row := next(run, None)) is not None:
                row |= self.saver.seconds_spent()
                better = self.evaluations(self.report.timesteps, row)
                self._tell(row, directory)
                limit = signals.reason or self._limit()
                if limit:
                    signals.done()  # saving may take longer than that
                if limit or better or self.saver.due(self.report.timesteps):
                    self._save(run)
        return limit or "end of the stream"

    def _started(self, flow: Any, directory: RunDirectory) -> Any:
        """Begin, or go on from a checkpoint."""
        if self.start is None:
            flow.explain("svg", path=str(directory.path / "plan.svg"))
            self.report.start()
            return flow.start()
        checkpoint, state = self.start.checkpoint, self.start.state
        self.learner.restore(state["learner"])
        self.evaluations.restore(state["evaluations"])
        self.saver.start(checkpoint, checkpoint.about["steps"])
        self.start = dataclasses.replace(self.start, state=None)  # it may be large
        return flow.start(state=state["flow"])

    def _tell(self, row: dict[str, Any], directory: RunDirectory) -> None:
        directory.add(row)
        self.events.add(row)
        self.result.metrics.append(row)
        self.result.returns += row["returns"]
        for watcher in self.watchers:
            watcher.iteration(row)

    def _save(self, run: Any) -> None:
        report = self.report
        about = {
            "steps": report.timesteps,
            "iterations": report.iterations,
            "algorithm": self.algorithm.name,
            "env": self.env.name,
            "seed": self.cfg.seed,
            "mean_return": report.mean_return,
            "score": self.evaluations.score(report.timesteps, report.mean_return if report.full else None),
        }
        self.events.flush()
        checkpoint = self.saver.save(lambda: self._state(run), about)
        for watcher in self.watchers if checkpoint else ():
            watcher.saved(report.timesteps)

    def _state(self, run: Any) -> Any:
        flow = run.state()  # first: what is under way comes to its end
        return {"learner": self.learner.state(), "flow": flow, "evaluations": self.evaluations.state()}

    def _limit(self) -> str | None:
        cfg, report = self.cfg, self.report
        most = cfg.num_iterations
        if cfg.stop_return is not None and report.full and report.mean_return >= cfg.stop_return:
            return "stop_return"
        if cfg.total_timesteps is not None and report.timesteps >= cfg.total_timesteps:
            return "total_timesteps"
        if most is not None and report.iterations >= most:
            return "iterations"
        if cfg.stop_seconds is not None and report.elapsed >= cfg.stop_seconds:
            return "stop_seconds"
        return None

    def _summarise(self, directory: RunDirectory, stopped_by: str) -> None:
        report, seconds, last = self.report, max(self.report.elapsed, 1e-9), self.saver.last
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
            "resumed_at": self.start.steps if self.start else None,
            "weights_sha256": self.policy.sha256(),
            "state_sha256": last and last.sha256,
            "checkpoint": last and str(last.path),
            "run_dir": str(directory.path),
        }
        directory.write("summary.json", self.result.summary)


def plain_name(name: str) -> str:
    """Return an environment's name as it can be part of a folder's."""
    return name.replace(":", ".").replace("/", "-")
