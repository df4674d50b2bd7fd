"""Recording a run: its directory, its metrics, and how it ended."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raceway.checkpoints.store import Checkpoint
from raceway.errors import INTERRUPTS, ConfigError, EnvironmentFailed, OperatorError
from raceway.machine import seconds_since_process_start
from raceway.runs.directory import RunDirectory, as_json, survives_json
from raceway.runs.merged_rows import RowMerger
from raceway.runs.metrics_file import last_row, read_metrics
from raceway.runs.reader import numeric_value
from raceway.runs.resume import ResumePoint
from raceway.runs.tensorboard import TensorBoardWriter
from raceway.runs.trained_policy import TrainedPolicy
from raceway.settings.progress import UPDATES

_log = logging.getLogger(__name__)


@dataclass(repr=False)
class Result:
    """The outcome of a run."""

    summary: dict[str, Any]
    """The summary that `--json` prints."""
    policy: TrainedPolicy
    """The policy at the end of the training."""
    directory: Path | None = field(default=None, repr=False)
    """The run directory as an absolute path, also while the run is being trained."""
    _rows_read: tuple[Any, list[dict[str, Any]]] | None = field(default=None, repr=False, compare=False)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics, read from the run directory; fast iterations share a row (`metrics_interval`)."""
        assert self.directory is not None, "the run has not started"
        file = self.directory / "metrics.jsonl"
        try:
            status = file.stat()
        except OSError as error:
            raise ConfigError(f"{file} is gone. Read a result's metrics before its directory is removed.") from error
        version = status.st_mtime_ns, status.st_size
        if self._rows_read is None or self._rows_read[0] != version:
            self._rows_read = version, read_metrics(self.directory)
        return self._rows_read[1]

    @property
    def returns(self) -> list[float]:
        """The returns of the episodes, ordered by iteration; of each row of metrics the latest 1000."""
        return [value for row in self.metrics for value in row["returns"]]

    def __repr__(self) -> str:
        if not self.summary:
            return "<result of a training that has not ended>"
        summary, mean = self.summary, self.summary["mean_return"]
        updates = summary["updates"]
        length = f"{summary['timesteps']:,} steps" if updates is None else f"{updates:,} updates"
        return (
            f"<result of {summary['algorithm']} on {summary['env']}, "
            f"{'no return' if mean is None else f'mean return {mean:.4g}'} after {length}, in {summary['run_dir']}>"
        )

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(self.summary["run_dir"])


class RunRecorder(AbstractContextManager["RunRecorder"]):
    """Writes the files of a run, and fills its `Result`.

    Args:
        training: the `Training` to record.
        clock: the clock that `metrics_interval` refers to.
    """

    directory: RunDirectory
    tensorboard: TensorBoardWriter

    def __init__(self, training: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.training, self.result = training, training.result
        self._merger = RowMerger(training.cfg.metrics_interval, clock)
        self._flow_metrics: Any = None
        self._stack = ExitStack()

    def __enter__(self) -> RunRecorder:
        """Create or reopen the run directory, and describe the run in it. A new one is removed if that fails."""
        training, resume_point = self.training, self.training.resume_point
        config = training.saved_config
        _check_serialisable(config)
        with ExitStack() as stack:
            path = training.cfg.run_dir
            self.directory = RunDirectory.reopen(path) if resume_point else RunDirectory.new(path, _name(training))
            self.result.directory = self.path.absolute()
            stack.push(self._close_directory)
            if resume_point is not None:
                self._resume(resume_point, config)
            else:
                self._start_new(config)
            from_step = resume_point.steps if resume_point else None
            self.tensorboard = stack.enter_context(TensorBoardWriter(self.directory.path, from_step))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and self._nothing_trained:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            self.flush()
            if error is not None and self._flow_metrics is not None and not self.result.summary:
                self._record_error(error)

    @property
    def _nothing_trained(self) -> bool:
        """Whether this is a new run whose first iteration has not ended."""
        training = self.training
        return training.resume_point is None and training.report.iterations == 0 and not self.result.summary

    def _close_directory(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and self._nothing_trained:
            self.directory.remove()
        else:
            self.directory.close()

    def _record_error(self, error: BaseException) -> None:
        """Record the exception that ends the run. Nothing that fails here may hide it."""
        try:
            if isinstance(error, INTERRUPTS):
                self.summarise("interrupt", self.training.saver.last)
            else:
                self.directory.write_error("".join(traceback.format_exception(error)))
                original = _original(error)
                if isinstance(original, EnvironmentFailed):
                    self.training.report.env_failures += original.num_failures
                first_line = f"{type(original).__name__}: {original}".partition("\n")[0]
                self.summarise("error", self.training.saver.last, error=first_line)
        except Exception:
            _log.exception("%s: how the run ended could not be recorded", self.path)

    def begin(self, flow_metrics: Any) -> None:
        """Begin the run with the metrics of its flow. The files that say how an earlier part ended are removed."""
        self._flow_metrics = flow_metrics
        self.directory.remove_ending()

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    def _start_new(self, config: dict[str, Any]) -> None:
        training, requested = self.training, self.training.requested_cfg
        self.directory.describe(
            training.algorithm.name,
            config,
            **self._chosen,
            algorithm_import=training.algorithm.import_name,
            initial_weights=training.initial_weights,
            **training.describe_agents(),
            env={"name": training.env.name, "kwargs": training.env.kwargs, "vector": training.cfg.vector},
            importable={name: survives_json(getattr(requested, name)) for name in ("env", "network", "env_kwargs")},
        )

    @property
    def _chosen(self) -> dict[str, Any]:
        """The number of workers and where the settings come from, for config.json."""
        training = self.training
        workers = {"num_workers": training.num_workers, "num_workers_reason": training.num_workers_reason}
        return {**workers, "setting_sources": training.setting_sources}

    def _resume(self, resume_point: ResumePoint, config: dict[str, Any]) -> None:
        resume_point.check_unchanged()
        about = resume_point.checkpoint.about
        self.directory.truncate_metrics(about["iterations"])
        self.directory.describe_resume(config, about["steps"], **self._chosen)

    def record(self, metrics: dict[str, Any]) -> None:
        """Record the metrics of an iteration."""
        row = self._merger.add(metrics)
        if row is not None:
            self._write(row)

    def flush(self) -> None:
        """Write the metrics of all iterations so far. Call it before every checkpoint, so that rows end there."""
        row = self._merger.take()
        if row is not None:
            self._write(row)
        self.tensorboard.flush()

    def _write(self, row: dict[str, Any]) -> None:
        self.directory.add(row)
        self.tensorboard.add(row)
        self.training.callbacks.on_metrics_row(row)

    def num_restarts(self) -> int:
        """Return the worker restarts up to the checkpoint that the run resumes from."""
        row = self.last_row()
        values = [numeric_value(row, f"{group}/worker_restarts") for group in ("rollout", "dataset")]
        return int(next((value for value in values if value is not None), 0))

    def last_row(self) -> dict[str, Any]:
        """Return the last row of metrics; an empty one if there is none."""
        return last_row(self.path)

    def replace_last_row(self, row: dict[str, Any]) -> None:
        """Record the last row again, with more metrics in it."""
        self.directory.replace_last_row(row)
        self.tensorboard.add(row)
        self.training.callbacks.on_metrics_row(row)

    def summarise(self, stopped_by: str, last: Checkpoint | None, error: str | None = None) -> None:
        """Write the summary of the run, with its last checkpoint, and the error if one ended it."""
        self.flush()
        training, report, evaluator = self.training, self.training.report, self.training.evaluator
        seconds = max(report.elapsed, 1e-9)
        missing = report.episode_metrics.missing(getattr(training.cfg, "info_keys", ()))
        counts_updates = training.cfg.progress is UPDATES
        if missing and report.episodes and error is None:
            text = "no episode's last info had %s: there are no such metrics. Check the names in info_keys"
            _log.warning(text, ", ".join(map(repr, missing)))
        self.result.summary = {
            "algorithm": training.algorithm.name,
            "env": training.env.name,
            "seed": training.cfg.seed,
            "engine": training.cfg.engine,
            "num_workers": training.num_workers,
            "iterations": report.iterations,
            "timesteps": report.timesteps,
            "updates": report.steps if counts_updates else None,
            "episodes": report.episodes,
            "wall_seconds": seconds_since_process_start(),
            "train_seconds": seconds,
            "fps": None if counts_updates else report.timesteps / seconds,
            "updates_per_second": report.steps / seconds if counts_updates else None,
            "mean_return": report.mean_return,
            "best_mean_return": report.best,
            "success_rate": report.episode_metrics.success_rate,
            "eval_mean_return": evaluator.last[1],
            "best_eval_mean_return": evaluator.best,
            "missing_info_keys": missing,
            "env_failures": report.env_failures,
            "worker_restarts": self._flow_metrics.num_restarts if self._flow_metrics is not None else 0,
            "stopped_by": stopped_by,
            "error": error,
            "resumed_at": training.resume_point.steps if training.resume_point else None,
            "weights_sha256": training.agent.sha256(),
            "state_sha256": last and last.sha256,
            "checkpoint": last and str(last.path),
            "run_dir": str(self.path),
            **training.summarise_agents(),
        }
        self.directory.write("summary.json", self.result.summary)


def _check_serialisable(config: dict[str, Any]) -> None:
    """Refuse settings that config.json cannot hold, such as dicts whose keys are tuples."""
    for name, value in config.items():
        try:
            as_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{name} cannot be saved in config.json: {error}") from error


def _original(error: BaseException) -> BaseException:
    """Return the error that an operator of the flow raised, or else the error itself."""
    return error.original if isinstance(error, OperatorError) and error.original is not None else error


def _name(training: Any) -> str:
    """Return the name of the run directory, without the time."""
    return f"{training.label}-{file_name_part(training.env.name)}-{training.cfg.seed}"


def file_name_part(name: str) -> str:
    """Return an environment's name as part of a file name.

    >>> file_name_part("ALE/Pong-v5")
    'ALE-Pong-v5'
    """
    return name.replace(":", ".").replace("/", "-")
