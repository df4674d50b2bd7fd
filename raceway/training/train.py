"""`train` and `resume`: from settings, or a saved run, to a trained policy and its run directory."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from raceway.agents import Spaces, build_agent
from raceway.agents.network_choice import import_network
from raceway.algorithms import Algorithm, Context, find_algorithm
from raceway.algorithms.setting_sources import FILE, USER, Sources, adapted_sources, check_settings_used, known_sources
from raceway.checkpoints.saver import Saver
from raceway.checkpoints.store import Checkpoints
from raceway.checks import check_choice
from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.engine.plan_only import PlanOnlyEngine
from raceway.envs import EnvSettings, make_slots
from raceway.envs.names import is_multi_agent
from raceway.errors import INTERRUPTS, CallbackError, ConfigError, RacewayError
from raceway.learner.exploration import Exploration
from raceway.machine import worker_compute_settings
from raceway.rl.seeding import Purpose, derive_seed
from raceway.rl.space_json import space_to_json
from raceway.runs.config_file import read_config
from raceway.runs.directory import RunDirectory
from raceway.runs.initial_weights import load_initial_weights
from raceway.runs.recorder import Result, RunRecorder
from raceway.runs.resume import ResumePoint, prepare_resume
from raceway.runs.settings_file import SettingsFile, merge_settings, open_settings_file
from raceway.runs.trained_policy import TrainedPolicy
from raceway.signals import StopSignals
from raceway.training.evaluations import PeriodicEvaluator
from raceway.training.flow_metrics import FlowMetrics
from raceway.training.policy_trainers import saved_policies, without_policy_network
from raceway.training.worker_count import decide_workers
from raceway.ui.callback import Callback
from raceway.ui.callback_list import CallbackList
from raceway.ui.progress import with_display

_log = logging.getLogger(__name__)

_PRELOAD = ["torch", "gymnasium", "raceway.ops"]  # imported once, by the launcher, for all workers


def train(
    algorithm: str | None = None, *, config: str | PathLike[str] | SettingsFile | None = None,
    callbacks: Sequence[Callback] = (), resume: str | None = None, progress: bool = True, policies: Any = None,
    **settings: Any,
) -> Result:  # fmt: skip
    """Train a policy, or the policies of several agents.

    Args:
        algorithm: the name of the algorithm, or `module:name`; by default the one in `config`, or reinforce.
        config: a file of settings (TOML, YAML or JSON), or a run directory, to train with the settings of that run.
        callbacks: notified of the progress; see `Callback`.
        resume: `auto` resumes the run in `run_dir` if there is one.
        progress: whether progress is shown on stderr, unless one of the callbacks is a `Display`.
        policies: in an environment with several agents, `shared` (one policy for all agents with equal spaces),
            `per-agent`, or a mapping or file of policies; see `raceway.training.policy_settings`.
        settings: settings of the algorithm, as listed by `raceway train <algorithm> --help`; they take precedence over
            those of `config`.
    """
    file = open_settings_file(config)
    spec = find_algorithm(algorithm or (file and file.algorithm) or "reinforce")
    settings, from_file = merge_settings(spec, file, settings)
    callbacks = with_display(callbacks, progress=progress)
    if resume is not None:
        check_choice("way to resume", resume, ("auto",))
        if settings.get("run_dir") is None:
            raise ConfigError("--resume auto resumes the run in --run-dir. Pass --run-dir too.")
        path = Path(settings["run_dir"])
        if Checkpoints(path / "checkpoints").all():
            run_dir = settings.pop("run_dir")
            training = Training.from_run(run_dir, spec, callbacks=callbacks, from_file=from_file, **settings)
            training.check_policies(policies)
            return training.run()
    sources = spec.sources(settings, from_file)
    policies = policies if policies is not None or file is None else file.policies
    training = make_training(spec, spec.settings(**settings), callbacks, policies=policies, setting_sources=sources)
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
        callbacks: notified of the progress; see `Callback`.
        trust: whether modules of an environment, network or algorithm that the run names may be imported.
        env: the environment, unless it is registered with Gymnasium.
        network: the network, if it is a function.
        progress: whether progress is shown on stderr, unless one of the callbacks is a `Display`.
        settings: settings that change. A setting that cannot change is an error, which lists those that can.
    """
    passed = {name: value for name, value in (("env", env), ("network", network)) if value is not None}
    callbacks = with_display(callbacks, progress=progress)
    return Training.from_run(run, callbacks=callbacks, trust=trust, **passed, **settings).run()


def make_training(algorithm: Algorithm, cfg: Any, *arguments: Any, policies: Any = None, **options: Any) -> Training:
    """Return the training of one agent or, if the environment has several or policies are given, of all of them."""
    if policies is None and not is_multi_agent(cfg.env):
        return Training(algorithm, cfg, *arguments, **options)
    if not algorithm.source.joint:
        raise ConfigError(
            f"{algorithm.name} does not learn from rollouts, which the policies of several agents share. Leave "
            "policies out and use an environment with one agent, or use another algorithm."
        )
    if isinstance(cfg.env, str) and not is_multi_agent(cfg.env):
        raise ConfigError(
            f"policies are for environments with several agents, and {cfg.env} has one. Leave them out, or name an "
            "environment of PettingZoo's API: --env pettingzoo:mpe2.simple_spread_v3"
        )
    from raceway.training.multi_agent import MultiAgentTraining

    return MultiAgentTraining(algorithm, cfg, *arguments, policies=policies, **options)


class Training:
    """One run, from its settings to its summary."""

    policies: Mapping[str, Any] = {}
    """What trains each policy, if there are several agents."""
    initial_weights: dict[str, Any] | None = None
    """The checkpoint of another run that a new run starts from, for config.json; or those of the policies."""

    def __init__(
        self, algorithm: Algorithm, cfg: Any, callbacks: Sequence[Callback] = (), *,
        resume_point: ResumePoint | None = None, clock: Callable[[], float] = time.monotonic,
        setting_sources: Sources | None = None,
    ) -> None:  # fmt: skip
        self.algorithm, self.resume_point, self._clock = algorithm, resume_point, clock
        self.callbacks = CallbackList(callbacks)
        episode_callbacks = self.callbacks.for_workers()
        self.requested_cfg = cfg
        """The config as it was passed; `cfg` is adapted to the source and the environment."""
        self.source = algorithm.source(cfg)
        cfg = self.source.cfg
        self.env = EnvSettings(cfg.env, cfg.env_kwargs, cfg.vector, cfg.last_action_and_reward).resolved()
        slots = make_slots(self.env, 1)
        try:
            algorithm.check_actions(slots.action_space, self.env.name)
            adapted = cfg.for_env(slots)
            self.setting_sources = adapted_sources(setting_sources or {}, self.requested_cfg, adapted)
            self.cfg = dataclasses.replace(adapted, network=import_network(cfg.network))
            self.spaces = Spaces(slots.observation_space, slots.action_space)
            self.source.prepare(algorithm, self.cfg, self.env, slots, episode_callbacks)
            self.agent = build_agent(algorithm.agent, self.spaces, self.cfg, derive_seed(cfg.seed, Purpose.WEIGHTS))
        finally:
            slots.close()
        algorithm.check_memory(self.agent)
        self.source.show_data(self.agent)
        if resume_point is None:
            unused, preset_only = self.agent.actor.unused_settings, lambda: algorithm.settings(env=cfg.env)
            check_settings_used(unused, cfg, self.setting_sources, preset_only)
        if resume_point is None and cfg.init_from is not None:
            self.initial_weights = load_initial_weights(self.agent, cfg.init_from)
        self.exploration = Exploration(algorithm.make_explorer(self.spaces, self.cfg))
        if resume_point is not None:
            resume_point.check_weights_fit(self.agent)
        self._slots = slots  # closed; for deciding on the number of workers
        if self.cfg.num_workers != "auto":
            _ = self._decided_workers  # refuses too many at once
        self.learner = self.cfg.learner(self.agent)
        self.report = self.source.report()
        about = {"run": None, "algorithm": algorithm.name, "env": self.env.name, "checkpoint": None, "steps": 0}
        about["unit"] = self.cfg.progress.noun
        trained_policy = TrainedPolicy(
            self.agent, self.spaces, self.env, {**about, "mean_return": None}, clip_actions=cfg.clip_actions,
            explorer=self.exploration.explorer,
        )  # fmt: skip
        self.result = Result({}, trained_policy)
        self.evaluator = PeriodicEvaluator(
            self.learner, self.env, cfg.eval_every, cfg.eval_episodes, seed=cfg.seed, clip_actions=cfg.clip_actions
        )

    @classmethod
    def from_run(
        cls, run: str | Path, algorithm: Algorithm | None = None, *, callbacks: Sequence[Callback] = (),
        trust: bool = False, from_file: AbstractSet[str] = frozenset(), **settings: Any,
    ) -> Training:  # fmt: skip
        """Return the training that resumes a run. If an algorithm is passed, the run must be of that algorithm."""
        about = read_config(run)
        own = settings if "policies" not in about else without_policy_network(about, settings)
        run_algorithm, cfg, resume_point = prepare_resume(run, algorithm, own, trust=trust)
        saved = known_sources(run_algorithm.config, about["setting_sources"])
        sources = {**saved, **dict.fromkeys(settings, USER), **dict.fromkeys(from_file - {"run_dir"}, FILE)}
        policies = None
        if "policies" in about:
            policies = saved_policies(about, settings.get("network"), trust=trust)
        options: Any = {"resume_point": resume_point, "setting_sources": sources}
        return make_training(run_algorithm, cfg, callbacks, policies=policies, **options)

    @cached_property
    def _decided_workers(self) -> tuple[int, str]:
        """The number of workers and the reason. It may be measured, which a plan that is only shown does not need."""
        resumed = self.resume_point is not None
        measured = self._slots if self.source.acts else None
        return decide_workers(self.cfg, self.env, measured, self.setting_sources, resumed=resumed)

    @property
    def rollouts(self) -> Any:
        """The settings of the rollout workers, or of those of another source."""
        return self.source.settings

    @property
    def num_workers(self) -> int:
        """The number of workers, 0 for stepping in the driver."""
        return self._decided_workers[0]

    @property
    def num_workers_reason(self) -> str:
        """Why there are as many workers, if it is not the user's decision."""
        return self._decided_workers[1]

    def run(self) -> Result:
        """Train until a limit is reached or a signal arrives."""
        self.cfg.check_complete()
        _ = self._decided_workers  # before the run directory is created
        with ExitStack() as stack:
            recorder = stack.enter_context(RunRecorder(self))
            self.saver = Saver(
                Checkpoints(recorder.path / "checkpoints", self.cfg.keep), self.cfg.save_every, self.cfg.save_seconds,
                self._clock,
            )  # fmt: skip
            stack.enter_context(worker_compute_settings())
            signals = stack.enter_context(StopSignals())
            self.callbacks.start(self, recorder.path, stack)
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
                with suppress(CallbackError):
                    recorder.flush()  # while callbacks can still be notified of the last row
                if self.saver.last is not None and self.saver.last.about["steps"]:
                    error.add_note(
                        f"Progress up to the last checkpoint is saved. Resume with: raceway resume {recorder.path}"
                    )
                raise
            recorder.summarise(stopped_by, self.saver.last)
            self._release_policy()
            self.callbacks.on_train_end(self.result.summary)
        return self.result

    def _release_policy(self) -> None:
        """Prepare the policy of the result for use after the training."""
        self.agent.to("cpu").eval()
        names = {"run": "run_dir", "checkpoint": "checkpoint", "mean_return": "mean_return"}
        self.result.policy.about |= {name: self.result.summary[key] for name, key in names.items()}
        self.result.policy.about["steps"] = self.report.steps

    @contextmanager
    def open_flow(self, *, run: bool) -> Iterator[Any]:
        """Yield the flow. If it is not going to run, no actor is started."""
        if not run:
            num_workers = 1 if self.cfg.num_workers == "auto" else max(1, self.num_workers)
            with PlanOnlyEngine() as engine:
                yield self.flow([engine.spawn(object, name=f"{self.source.name}-{n}") for n in range(num_workers)])
            return
        self.cfg.check_complete(limited=True)
        with worker_compute_settings(), self._engine() as engine:
            workers = self._spawn(engine)
            flow = self.flow(workers)
            self._weights.send(self._weights.workers)
            yield flow

    def _engine(self) -> Engine:
        if self.num_workers == 0 or self.cfg.engine == "inline":
            return make_engine("inline")
        options: dict[str, dict[str, Any]] = {"process": {"preload": _PRELOAD}, "ray": {"address": self.cfg.address}}
        return make_engine(self.cfg.engine, **options[self.cfg.engine])

    def _spawn(self, engine: Engine) -> list[Actor]:
        names = [f"{self.source.name}-{number}" for number in range(max(1, self.num_workers))]
        return [engine.spawn(*self.source.worker(name), name=name) for name in names]

    @property
    def label(self) -> str:
        """The algorithm of the run, as text."""
        return self.algorithm.name

    @property
    def saved_config(self) -> dict[str, Any]:
        """The settings as config.json holds them."""
        network = self.requested_cfg.network
        return {**dataclasses.asdict(self.cfg), "network": network, "env": self.env.name}

    def check_policies(self, policies: Any) -> None:
        """Refuse policies that are not those of the run, if it is resumed with some."""
        if policies is not None:
            raise ConfigError(f"the run has one agent, on {self.env.name}. Resume it without policies.")

    def describe_agents(self) -> dict[str, Any]:
        """Return what config.json says about the agent besides the settings."""
        observation_space, action_space = map(space_to_json, self.spaces)
        return {"spaces": {"observation": observation_space, "action": action_space}}

    def summarise_agents(self) -> dict[str, Any]:
        """Return what the summary says about policies, if there are several agents."""
        return {}

    def describe_checkpoint(self) -> dict[str, Any]:
        """Return what checkpoints say about policies, if there are several agents."""
        return {}

    @property
    def failure_policy(self) -> dict[str, Any]:
        """The failure policy of the workers, as arguments of `on_failure`."""
        budget, deadline = self.cfg.max_restarts, self.cfg.item_deadline
        window = max(60.0, (budget + 1) * (deadline or 0))  # else a worker that always hangs would be restarted forever
        return {"errors": False, "budget": budget, "deadline": deadline, "window": window}

    def flow(self, workers: Sequence[Actor]) -> Any:
        """Return the flow of the run."""
        failure_policy = self.failure_policy
        acting = workers if self.source.acts else []
        context = Context(self.learner, acting, workers[0].engine, self.exploration, failure_policy=failure_policy)
        self._weights = context.weights()
        stream = self.source.stream(workers, self._weights, failure_policy)
        return self.algorithm.plan(stream, self.cfg, context).for_each(self.report)

    def _iterate(self, workers: Sequence[Actor], recorder: RunRecorder, signals: StopSignals) -> str:
        """Train, and return the limit that was reached."""
        flow = self.flow(workers)
        self._weights.send(self._weights.workers)
        with self._start_flow(flow, recorder.path) as run:
            health = FlowMetrics(run, recorder.num_restarts(), source=self.source.name, group=self.source.metrics)
            recorder.begin(health)
            if self.resume_point is not None:
                self._run_overdue_evaluation(run, recorder, signals)
            limit = self._reached_limit() if self.resume_point is not None else None
            while limit is None and (row := next(run, None)) is not None:
                row |= self.saver.pop_metrics() | health.metrics()
                is_best = self._evaluate(row, signals)
                try:
                    recorder.record(row)
                    stopped_by = self.callbacks.on_iteration_end(row, health.take_restarted())
                    self.report.episode_metrics.raise_error()
                except CallbackError:
                    self._flush_and_save(run, recorder, signals)
                    raise
                limit = signals.reason or self._reached_limit() or stopped_by
                if limit or is_best or self.saver.due(self.report.steps):
                    self._flush_and_save(run, recorder, signals)
                    limit = limit or signals.reason  # a signal may have arrived meanwhile
                self.report.start_iteration()
        return limit or "end of the stream"

    def _flush_and_save(self, run: Any, recorder: RunRecorder, signals: StopSignals) -> None:
        with signals.without_timeout():
            recorder.flush()
            self._save(run)

    def _evaluate(self, row: dict[str, Any], signals: StopSignals) -> bool:
        return self.evaluator(self.report.steps, row, stop=lambda: signals.reason)

    def _run_overdue_evaluation(self, run: Any, recorder: RunRecorder, signals: StopSignals) -> None:
        """Run the evaluation that was due when the run was stopped."""
        row = recorder.last_row()
        if row and self.evaluator.due(self.report.steps):
            is_best = self._evaluate(row, signals)
            recorder.replace_last_row(row)
            self.callbacks.on_overdue_evaluation(row)
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
        self.exploration.restore(state["exploration"])
        self.evaluator.restore(state["evaluations"])
        self.saver.start(checkpoint, checkpoint.about["steps"])
        self.resume_point = dataclasses.replace(self.resume_point, state=None)  # it may be large
        return flow.start(state=state["flow"] or None, wait=True)

    def _save(self, run: Any | None) -> None:
        """Save the state of the running flow, or the initial state if there is none."""
        report = self.report
        about = {
            "steps": report.steps,
            "iterations": report.iterations,
            "algorithm": self.algorithm.name,
            "env": self.env.name,
            "seed": self.cfg.seed,
            "mean_return": report.mean_return,
            "knobs": {name: value.tolist() for name, value in self.exploration.knobs.items()},
            "score": self.evaluator.score(report.steps, report.mean_return if report.full else None),
            **self.describe_checkpoint(),
        }
        checkpoint = self.saver.save(lambda: self._state(run), about)
        if checkpoint is not None and run is not None:
            self.callbacks.on_checkpoint(checkpoint.path)

    def _state(self, run: Any | None) -> Any:
        flow = run.state(shared=True) if run is not None else {}  # first: items in flight are completed
        return {
            "learner": self.learner.state(),
            "exploration": self.exploration.state(),
            "flow": flow,
            "evaluations": self.evaluator.state(),
        }

    def _reached_limit(self) -> str | None:
        """Return the name of the first limit that is reached, or None."""
        cfg, report = self.cfg, self.report
        stop_return, mean_return = getattr(cfg, "stop_return", None), report.mean_return
        if stop_return is not None and report.full and mean_return is not None and mean_return >= stop_return:
            return "stop_return"
        if self.evaluator.reaches(cfg.stop_eval_return):
            return "stop_eval_return"
        if cfg.total_steps is not None and report.steps >= cfg.total_steps:
            return str(cfg.progress.setting)
        if cfg.num_iterations is not None and report.iterations >= cfg.num_iterations:
            return "iterations"
        if cfg.stop_seconds is not None and report.elapsed >= cfg.stop_seconds:
            return "stop_seconds"
        return None
