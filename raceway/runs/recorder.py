"""Recording a run: its directory, the metrics of every iteration, and the summary."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raceway.agents import Policy
from raceway.checkpoints.store import Checkpoint
from raceway.machine import seconds_since_process_start
from raceway.rl.space_json import space_to_json
from raceway.runs.directory import RunDirectory, survives_json
from raceway.runs.metrics_file import read_metrics
from raceway.runs.resume import ResumePoint
from raceway.runs.tensorboard import TensorBoardWriter


@dataclass
class Result:
    """The outcome of a run."""

    summary: dict[str, Any]
    """The summary that `--json` prints."""
    policy: Policy
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """One row per iteration."""
    returns: list[float] = field(default_factory=list)
    """The return of every episode, ordered by iteration."""

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(self.summary["run_dir"])


class RunRecorder(AbstractContextManager["RunRecorder"]):
    """Writes the files of a run, and fills its `Result`.

    Args:
        training: the `Training` to record.
    """

    directory: RunDirectory
    tensorboard: TensorBoardWriter

    def __init__(self, training: Any) -> None:
        self.training, self.result = training, training.result
        self._stack = ExitStack()

    def __enter__(self) -> RunRecorder:
        """Create or reopen the run directory, and describe the run in it."""
        training, resume_point = self.training, self.training.resume_point
        requested = training.requested_cfg
        config = {**dataclasses.asdict(training.cfg), "network": requested.network, "env": training.env.name}
        with ExitStack() as stack:
            path = training.cfg.run_dir
            self.directory = RunDirectory.reopen(path) if resume_point else RunDirectory.new(path, _name(training))
            stack.callback(self.directory.close)
            if resume_point is not None:
                self._resume(resume_point, config)
            else:
                self._start_new(config)
            from_step = resume_point.steps if resume_point else None
            self.tensorboard = stack.enter_context(TensorBoardWriter(self.directory.path, from_step))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    def _start_new(self, config: dict[str, Any]) -> None:
        training, requested = self.training, self.training.requested_cfg
        observation_space, action_space = map(space_to_json, training.spaces)
        self.directory.describe(
            training.algorithm.name,
            config,
            num_workers=training.num_workers,
            policy={**training.rollouts.policy_settings, "network": requested.network},
            spaces={"observation": observation_space, "action": action_space},
            env={"name": training.env.name, "kwargs": training.env.kwargs, "vector": training.env.vector},
            importable={name: survives_json(getattr(requested, name)) for name in ("env", "network", "env_kwargs")},
        )

    def _resume(self, resume_point: ResumePoint, config: dict[str, Any]) -> None:
        resume_point.check_unchanged()
        about = resume_point.checkpoint.about
        self.directory.truncate_metrics(about["iterations"])
        self.directory.describe_resume(config, about["steps"], num_workers=self.training.num_workers)
        self.result.metrics = read_metrics(self.path)
        self.result.returns = [value for row in self.result.metrics for value in row["returns"]]

    def record(self, row: dict[str, Any]) -> None:
        """Write the metrics of an iteration, and pass them to the callbacks."""
        self.directory.add(row)
        self.tensorboard.add(row)
        self.result.metrics.append(row)
        self.result.returns += row["returns"]
        for callback in self.training.callbacks:
            callback.on_iteration(row)

    def pop_last_row(self) -> dict[str, Any]:
        """Remove and return the metrics of the last iteration, to be recorded again with more."""
        row: dict[str, Any] = self.result.metrics.pop()
        del self.result.returns[len(self.result.returns) - len(row["returns"]) :]
        self.directory.truncate_metrics(row["time/iterations"] - 1)
        return row

    def summarise(self, stopped_by: str, last: Checkpoint | None) -> None:
        """Write the summary of the run, with its last checkpoint."""
        training, report = self.training, self.training.report
        seconds = max(report.elapsed, 1e-9)
        self.result.summary = {
            "algorithm": training.algorithm.name,
            "env": training.env.name,
            "seed": training.cfg.seed,
            "engine": training.cfg.engine,
            "num_workers": training.num_workers,
            "iterations": report.iterations,
            "timesteps": report.timesteps,
            "episodes": report.episodes,
            "wall_seconds": seconds_since_process_start(),
            "train_seconds": seconds,
            "fps": report.timesteps / seconds,
            "mean_return": report.mean_return,
            "best_mean_return": report.best,
            "stopped_by": stopped_by,
            "resumed_at": training.resume_point.steps if training.resume_point else None,
            "weights_sha256": training.policy.sha256(),
            "state_sha256": last and last.sha256,
            "checkpoint": last and str(last.path),
            "run_dir": str(self.path),
        }
        self.directory.write("summary.json", self.result.summary)


def _name(training: Any) -> str:
    """Return the name of the run directory, without the time."""
    return f"{training.algorithm.name}-{file_name_part(training.env.name)}-{training.cfg.seed}"


def file_name_part(name: str) -> str:
    """Return an environment's name as part of a file name.

    >>> file_name_part("ALE/Pong-v5")
    'ALE-Pong-v5'
    """
    return name.replace(":", ".").replace("/", "-")
