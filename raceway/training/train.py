"""`train`: from a name and some settings to a trained policy, with a folder that tells of it."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from raceway.agents.networks import imported
from raceway.algorithms import Algorithm, Context, find_algorithm
from raceway.checkpoints.saver import Saver
from raceway.checkpoints.store import Checkpoints
from raceway.checks import check_choice
from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.envs import EnvSettings, Purpose, Slots, make_slots, seed_of
from raceway.errors import ConfigError, RacewayError
from raceway.machine import as_in_a_worker, num_cores
from raceway.ops import ReportMetrics, RolloutWorker, parallel_rollouts
from raceway.runs.directory import RunDirectory
from raceway.runs.recorder import Recording, Result
from raceway.runs.resume import Start, start_of
from raceway.signals import StopSignals
from raceway.training.evaluations import Evaluations
from raceway.training.health import Health
from raceway.training.worker_count import choose_workers, measure_step
from raceway.ui.display import Watcher

_log = logging.getLogger(__name__)

_PRELOAD = ["torch", "gymnasium", "raceway.ops"]  # imported once, by the launcher, for all workers


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
        check_choice("way to resume", resume, ("auto",))
        if settings.get("run_dir") is None:
            raise ConfigError("--resume auto goes on with the run in --run-dir. Give that too.")
        path = Path(settings["run_dir"])
        if Checkpoints(path / "checkpoints").all():
            return Training.again(settings.pop("run_dir"), found, watchers=watchers, **settings).run()
    training = Training(found, found.settings(**settings), watchers)
    if resume is not None:
        RunDirectory.discard(path, found.name, training.env.name)
    return training.run()


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
        if start is not None:
            start.check_fit(self.policy)
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
            recording = stack.enter_context(Recording(self))
            self.saver = Saver(
                Checkpoints(recording.path / "checkpoints", self.cfg.keep), self.cfg.save_every, self.cfg.save_seconds,
                self._clock,
            )  # fmt: skip
            stack.enter_context(as_in_a_worker())
            signals = stack.enter_context(StopSignals())
            for watcher in self.watchers:
                stack.enter_context(watcher)
                watcher.begin(self, recording.path)
            engine = stack.enter_context(self._engine())
            workers = self._spawn(engine)
            signals.install()
            stopped_by = "interrupt"
            try:
                stopped_by = self._iterate(workers, recording, signals)
            except KeyboardInterrupt:
                stopped_by = signals.reason or stopped_by
                _log.info("stopped in the middle of an iteration: %s", stopped_by)
            except RacewayError as error:
                if self.saver.last is not None and self.saver.last.about["steps"]:
                    error.add_note(f"What was trained before is saved. Go on with: raceway resume {recording.path}")
                raise
            recording.summarise(stopped_by, self.saver.last)
            for watcher in self.watchers:
                watcher.end(self.result)
        return self.result

    @contextmanager
    def planned(self, *, run: bool) -> Iterator[Any]:
        """Give the plan with its actors; if it is not to be run, they live here."""
        with as_in_a_worker(), self._engine() if run else make_engine("inline") as engine:
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

    def _iterate(self, workers: Sequence[Actor], recording: Recording, signals: StopSignals) -> str:
        """Train, and return which limit was reached."""
        with self._started(self.flow(workers), recording.path) as run:
            if self.start is not None:
                self._catch_up(run, recording, signals)
            health = Health(run)
            limit = self._limit() if self.start is not None else None
            while limit is None and (row := next(run, None)) is not None:
                row |= self.saver.seconds_spent() | health.figures()
                better = self._evaluate(row, signals)
                recording.tell(row)
                limit = signals.reason or self._limit()
                if limit or better or self.saver.due(self.report.timesteps):
                    with signals.unhurried():
                        recording.events.flush()
                        self._save(run)
                    limit = limit or signals.reason  # it has come meanwhile
        return limit or "end of the stream"

    def _evaluate(self, row: dict[str, Any], signals: StopSignals) -> bool:
        return self.evaluations(self.report.timesteps, row, stop=lambda: signals.reason)

    def _catch_up(self, run: Any, recording: Recording, signals: StopSignals) -> None:
        """Evaluate what was to be evaluated when the run was stopped."""
        if self.result.metrics and self.evaluations.due(self.report.timesteps):
            row = recording.take_back()
            better = self._evaluate(row, signals)
            recording.tell(row)
            if better:
                with signals.unhurried():
                    self.saver.start(None, 0)  # or it would be taken for saved already
                    self._save(run)

    def _started(self, flow: Any, path: Path) -> Any:
        """Begin, or go on from a checkpoint."""
        if self.start is None:
            flow.explain("svg", path=str(path / "plan.svg"))
            self._save(None)  # so that there is one, however long the first iteration takes
            self.report.start()
            return flow.start()
        checkpoint, state = self.start.checkpoint, self.start.state
        self.learner.restore(state["learner"])
        self.evaluations.restore(state["evaluations"])
        self.saver.start(checkpoint, checkpoint.about["steps"])
        self.start = dataclasses.replace(self.start, state=None)  # it may be large
        return flow.start(state=state["flow"] or None)

    def _save(self, run: Any | None) -> None:
        """Save what a run has come to; without one, what it begins with."""
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
        checkpoint = self.saver.save(lambda: self._state(run), about)
        for watcher in self.watchers if checkpoint and run is not None else ():
            watcher.saved(report.timesteps)

    def _state(self, run: Any | None) -> Any:
        flow = run.state(shared=True) if run is not None else {}  # first: what is under way comes to its end
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
