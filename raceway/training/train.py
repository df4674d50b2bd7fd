"""`train` and `resume`: from settings, or a saved run, to a trained policy and its run directory."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from raceway.agents.networks import import_network
from raceway.algorithms import Algorithm, Context, find_algorithm
from raceway.algorithms.setting_sources import USER, Sources, adapted_sources, known_sources
from raceway.checkpoints.saver import Saver
from raceway.checkpoints.store import Checkpoints
from raceway.checks import check_choice
from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.envs import EnvSettings, make_slots
from raceway.errors import INTERRUPTS, ConfigError, RacewayError
from raceway.machine import worker_compute_settings
from raceway.ops import ReportMetrics, RolloutWorker, parallel_rollouts
from raceway.rl.seeding import Purpose, derive_seed
from raceway.runs.config_file import read_config
from raceway.runs.directory import RunDirectory
from raceway.runs.recorder import Result, RunRecorder
from raceway.runs.resume import ResumePoint, prepare_resume
from raceway.runs.trained_policy import TrainedPolicy
from raceway.signals import StopSignals
from raceway.training.evaluations import PeriodicEvaluator
from raceway.training.flow_metrics import FlowMetrics
from raceway.training.worker_count import decide_workers
from raceway.ui.callback import Callback
from raceway.ui.progress import with_display

_log = logging.getLogger(__name__)

_PRELOAD = ["torch", "gymnasium", "raceway.ops"]  # imported once, by the launcher, for all workers


def train(
    algorithm: str = "reinforce", *, callbacks: Sequence[Callback] = (), resume: str | None = None,
    progress: bool = True, **settings: Any,
) -> Result:  # fmt: skip
    """Train a policy.

    Args:
        algorithm: the name of the algorithm.
        callbacks: called at the start, after every iteration and every checkpoint, and at the end.
        resume: `auto` resumes the run in `run_dir` if there is one.
        progress: whether progress is shown on stderr, unless one of the callbacks is a `Display`.
        settings: settings of the algorithm, as listed by `raceway train <algorithm> --help`.
    """
    spec, callbacks = find_algorithm(algorithm), with_display(callbacks, progress=progress)
    if resume is not None:
        check_choice("way to resume", resume, ("auto",))
        if settings.get("run_dir") is None:
            raise ConfigError("--resume auto resumes the run in --run-dir. Pass --run-dir too.")
        path = Path(settings["run_dir"])
        if Checkpoints(path / "checkpoints").all():
            return Training.from_run(settings.pop("run_dir"), spec, callbacks=callbacks, **settings).run()
    training = Training(spec, spec.settings(**settings), callbacks, setting_sources=spec.sources(settings))
    if resume is not None:
        RunDirectory.discard(path, spec.name, training.env.name)
    return training.run()


def resume(
    run: str | Path, *, callbacks: Sequence[Callback] = (), trust: bool = False, env: Any = None,
    network: Any = None, progress: bool = True, **settings: Any,
) -> Result:  # fmt: skip
    """Resume a run from its latest checkpoint.

    Args:
        run: the run directory.
        callbacks: called at the start, after every iteration and every checkpoint, and at the end.
        trust: whether modules of an environment or network that the run names may be imported.
        env: the environment, unless it is registered with Gymnasium.
        network: the network, if it is a function.
        progress: whether progress is shown on stderr, unless one of the callbacks is a `Display`.
        settings: settings that change. A setting that cannot change is an error, which lists those that can.
    """
    passed = {name: value for name, value in (("env", env), ("network", network)) if value is not None}
    callbacks = with_display(callbacks, progress=progress)
    return Training.from_run(run, callbacks=callbacks, trust=trust, **passed, **settings).run()


class Training:
    """One run, from its settings to its summary."""

    def __init__(
        self, algorithm: Algorithm, cfg: Any, callbacks: Sequence[Callback] = (), *,
        resume_point: ResumePoint | None = None, clock: Callable[[], float] = time.monotonic,
        setting_sources: Sources | None = None,
    ) -> None:  # fmt: skip
        self.algorithm, self.callbacks, self.resume_point, self._clock = algorithm, callbacks, resume_point, clock
        self.requested_cfg = cfg
        """The config as it was passed; `cfg` is adapted to the environment."""
        self.env = EnvSettings(cfg.env, cfg.env_kwargs, cfg.vector).resolved()
        slots = make_slots(self.env, 1)
        try:
            algorithm.check_actions(slots.action_space, self.env.name)
            adapted = cfg.for_env(slots)
            self.setting_sources = adapted_sources(setting_sources or {}, cfg, adapted)
            self.cfg = dataclasses.replace(adapted, network=import_network(cfg.network))
            spaces = slots.observation_space, slots.action_space
            self.rollouts = dataclasses.replace(self.cfg.rollouts(self.env), repeats_from_seed=slots.repeats_from_seed)
            self.policy = self.rollouts.make_policy(*spaces, derive_seed(cfg.seed, Purpose.WEIGHTS))
        finally:
            slots.close()
        self.spaces = spaces
        if resume_point is not None:
            resume_point.check_weights_fit(self.policy)
        self.num_workers, self.num_workers_reason = decide_workers(
            self.cfg, self.env, slots, self.setting_sources, resumed=resume_point is not None
        )
        self.learner = self.cfg.learner(self.policy)
        self.report = ReportMetrics()
        about = {"run": None, "algorithm": algorithm.name, "env": self.env.name, "checkpoint": None, "steps": 0}
        trained_policy = TrainedPolicy(
            self.policy, spaces, self.env, {**about, "mean_return": None}, clip_actions=cfg.clip_actions
        )
        self.result = Result({}, trained_policy)
        self.evaluator = PeriodicEvaluator(
            self.learner, self.env, cfg.eval_every, cfg.eval_episodes, seed=cfg.seed, clip_actions=cfg.clip_actions
        )

    @classmethod
    def from_run(
        cls, run: str | Path, algorithm: Algorithm | None = None, *, callbacks: Sequence[Callback] = (),
        trust: bool = False, **settings: Any,
    ) -> Training:  # fmt: skip
        """Return the training that resumes a run. If an algorithm is passed, the run must be of that algorithm."""
        run_algorithm, cfg, resume_point = prepare_resume(run, algorithm, settings, trust=trust)
        saved = known_sources(run_algorithm.config, read_config(run)["setting_sources"])
        sources = {**saved, **dict.fromkeys(settings, USER)}
        return cls(run_algorithm, cfg, callbacks, resume_point=resume_point, setting_sources=sources)

    def run(self) -> Result:
        """Train until a limit is reached or a signal arrives."""
        with ExitStack() as stack:
            recorder = stack.enter_context(RunRecorder(self))
            self.saver = Saver(
                Checkpoints(recorder.path / "checkpoints", self.cfg.keep), self.cfg.save_every, self.cfg.save_seconds,
                self._clock,
            )  # fmt: skip
            stack.enter_context(worker_compute_settings())
            signals = stack.enter_context(StopSignals())
            for callback in self.callbacks:
                stack.enter_context(callback)
                callback.on_start(self, recorder.path)
            engine = stack.enter_context(self._engine())
            workers = self._spawn(engine)
            signals.install()
            stopped_by = "interrupt"
            try:
                stopped_by = self._iterate(workers, recorder, signals)
            except INTERRUPTS:
                stopped_by = signals.reason or stopped_by
                _log.info("stopped in the middle of an iteration: %s", stopped_by)
            except RacewayError as error:
                if self.saver.last is not None and self.saver.last.about["steps"]:
                    error.add_note(
                        f"Progress up to the last checkpoint is saved. Resume with: raceway resume {recorder.path}"
                    )
                raise
            recorder.summarise(stopped_by, self.saver.last)
            self._release_policy()
            for callback in self.callbacks:
                callback.on_end(self.result)
        return self.result

    def _release_policy(self) -> None:
        """Prepare the policy of the result for use after the training."""
        self.policy.to("cpu").eval()
        names = {"run": "run_dir", "checkpoint": "checkpoint", "steps": "timesteps", "mean_return": "mean_return"}
        self.result.policy.about |= {name: self.result.summary[key] for name, key in names.items()}

    @contextmanager
    def open_flow(self, *, run: bool) -> Iterator[Any]:
        """Yield the flow with its actors. If it is not going to run, they live in this process."""
        with worker_compute_settings(), self._engine() if run else make_engine("inline") as engine:
            yield self.flow(self._spawn(engine))

    def _engine(self) -> Engine:
        if self.num_workers == 0 or self.cfg.engine == "inline":
            return make_engine("inline")
        options: dict[str, dict[str, Any]] = {"process": {"preload": _PRELOAD}, "ray": {"address": self.cfg.address}}
        return make_engine(self.cfg.engine, **options[self.cfg.engine])

    def _spawn(self, engine: Engine) -> list[Actor]:
        names = [f"rollouts-{number}" for number in range(max(1, self.num_workers))]
        return [engine.spawn(RolloutWorker, (self.rollouts, name), name=name) for name in names]

    def flow(self, workers: Sequence[Actor]) -> Any:
        """Return the flow of the run."""
        budget, deadline = self.cfg.max_restarts, self.cfg.item_deadline
        window = max(60.0, (budget + 1) * (deadline or 0))  # else a worker that always hangs would be restarted forever
        failure_policy = {"errors": False, "budget": budget, "deadline": deadline, "window": window}
        context = Context(self.learner, workers, workers[0].engine, failure_policy=failure_policy)
        weights = context.weights()
        # A restarted worker gets the current weights, and collects the same rollouts that the dead one would have.
        rollouts = parallel_rollouts(workers, self.rollouts).on_failure(
            "restart", on_restart=weights.send_to, **failure_policy
        )
        plan = self.algorithm.plan(rollouts, self.cfg, context)
        weights.send(workers)
        return plan.for_each(self.report)

    def _iterate(self, workers: Sequence[Actor], recorder: RunRecorder, signals: StopSignals) -> str:
        """Train, and return the limit that was reached."""
        with self._start_flow(self.flow(workers), recorder.path) as run:
            health = FlowMetrics(run, recorder.num_restarts())
            recorder.begin(health)
            if self.resume_point is not None:
                self._run_overdue_evaluation(run, recorder, signals)
            limit = self._reached_limit() if self.resume_point is not None else None
            while limit is None and (row := next(run, None)) is not None:
                row |= self.saver.pop_metrics() | health.metrics()
                is_best = self._evaluate(row, signals)
                recorder.record(row)
                limit = signals.reason or self._reached_limit()
                if limit or is_best or self.saver.due(self.report.timesteps):
                    with signals.without_timeout():
                        recorder.flush()
                        self._save(run)
                    limit = limit or signals.reason  # a signal may have arrived meanwhile
                self.report.start_iteration()
        return limit or "end of the stream"

    def _evaluate(self, row: dict[str, Any], signals: StopSignals) -> bool:
        return self.evaluator(self.report.timesteps, row, stop=lambda: signals.reason)

    def _run_overdue_evaluation(self, run: Any, recorder: RunRecorder, signals: StopSignals) -> None:
        """Run the evaluation that was due when the run was stopped."""
        row = recorder.last_row()
        if row and self.evaluator.due(self.report.timesteps):
            is_best = self._evaluate(row, signals)
            recorder.replace_last_row(row)
            if is_best:
                with signals.without_timeout():
                    self.saver.start(None, 0)  # else the saver would skip these steps as already saved
                    self._save(run)

    def _start_flow(self, flow: Any, path: Path) -> Any:
        """Start the flow from the beginning, or from a checkpoint."""
        if self.resume_point is None:
            flow.explain("svg", path=str(path / "plan.svg"))
            self._save(None)  # the first iteration may take long
            self.report.start()
            return flow.start(wait=True)  # until the learner is not in use any more
        checkpoint, state = self.resume_point.checkpoint, self.resume_point.state
        self.learner.restore(state["learner"])
        self.evaluator.restore(state["evaluations"])
        self.saver.start(checkpoint, checkpoint.about["steps"])
        self.resume_point = dataclasses.replace(self.resume_point, state=None)  # it may be large
        return flow.start(state=state["flow"] or None, wait=True)

    def _save(self, run: Any | None) -> None:
        """Save the state of the running flow, or the initial state if there is none."""
        report = self.report
        about = {
            "steps": report.timesteps,
            "iterations": report.iterations,
            "algorithm": self.algorithm.name,
            "env": self.env.name,
            "seed": self.cfg.seed,
            "mean_return": report.mean_return,
            "score": self.evaluator.score(report.timesteps, report.mean_return if report.full else None),
        }
        checkpoint = self.saver.save(lambda: self._state(run), about)
        for callback in self.callbacks if checkpoint and run is not None else ():
            callback.on_checkpoint(report.timesteps)

    def _state(self, run: Any | None) -> Any:
        flow = run.state(shared=True) if run is not None else {}  # first: items in flight are completed
        return {"learner": self.learner.state(), "flow": flow, "evaluations": self.evaluator.state()}

    def _reached_limit(self) -> str | None:
        """Return the name of the first limit that is reached, or None."""
        cfg, report = self.cfg, self.report
        if cfg.stop_return is not None and report.full and report.mean_return >= cfg.stop_return:
            return "stop_return"
        if cfg.total_timesteps is not None and report.timesteps >= cfg.total_timesteps:
            return "total_timesteps"
        if cfg.num_iterations is not None and report.iterations >= cfg.num_iterations:
            return "iterations"
        if cfg.stop_seconds is not None and report.elapsed >= cfg.stop_seconds:
            return "stop_seconds"
        return None
