"""What is written down of a run: its folder, the figures of every iteration, and what it came to."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raceway.agents import Policy
from raceway.checkpoints.store import Checkpoint
from raceway.machine import since_start
from raceway.rl.space_json import space_to_json
from raceway.runs.directory import RunDirectory, is_plain, read_metrics
from raceway.runs.resume import Start
from raceway.runs.tensorboard import Events


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


class Recording(AbstractContextManager["Recording"]):
    """Writes down what becomes of a training, and has it in its result.

    Args:
        training: what is run, as it was asked for; see `Training`.
    """

    directory: RunDirectory
    events: Events

    def __init__(self, training: Any) -> None:
        self.training, self.result = training, training.result
        self._stack = ExitStack()

    def __enter__(self) -> Recording:
        """Open the folder, with all that is known of the run so far."""
        training, start = self.training, self.training.start
        config = {**dataclasses.asdict(training.cfg), "network": training.asked.network, "env": training.env.name}
        with ExitStack() as stack:
            path = training.cfg.run_dir
            self.directory = RunDirectory.again(path) if start else RunDirectory.new(path, _name(training))
            stack.callback(self.directory.close)
            if start is not None:
                self._go_on(start, config)
            else:
                self._begin(config)
            self.events = stack.enter_context(Events(self.directory.path, start.steps if start else None))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.directory.path

    def _begin(self, config: dict[str, Any]) -> None:
        training, asked = self.training, self.training.asked
        seen, done = map(space_to_json, training.spaces)
        self.directory.describe(
            training.algorithm.name,
            config,
            num_workers=training.num_workers,
            policy={**training.rollouts.about_policy, "network": asked.network},
            spaces={"observation": seen, "action": done},
            env={"name": training.env.name, "kwargs": training.env.kwargs, "vector": training.env.vector},
            importable={name: is_plain(getattr(asked, name)) for name in ("env", "network", "env_kwargs")},
        )

    def _go_on(self, start: Start, config: dict[str, Any]) -> None:
        start.check()
        about = start.checkpoint.about
        self.directory.rewind(about["iterations"])
        self.directory.describe_again(config, about["steps"], num_workers=self.training.num_workers)
        self.result.metrics = read_metrics(self.path)
        self.result.returns = [value for row in self.result.metrics for value in row["returns"]]

    def tell(self, row: dict[str, Any]) -> None:
        """Write down the figures of an iteration, and tell those who watch."""
        self.directory.add(row)
        self.events.add(row)
        self.result.metrics.append(row)
        self.result.returns += row["returns"]
        for watcher in self.training.watchers:
            watcher.iteration(row)

    def take_back(self) -> dict[str, Any]:
        """Return the figures of the last iteration, which are to be told anew, with more."""
        row: dict[str, Any] = self.result.metrics.pop()
        del self.result.returns[len(self.result.returns) - len(row["returns"]) :]
        self.directory.rewind(row["time/iterations"] - 1)
        return row

    def summarise(self, stopped_by: str, last: Checkpoint | None) -> None:
        """Write down what came of it, and the last checkpoint."""
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
            "wall_seconds": since_start(),
            "train_seconds": seconds,
            "fps": report.timesteps / seconds,
            "mean_return": report.mean_return,
            "best_mean_return": report.best,
            "stopped_by": stopped_by,
            "resumed_at": training.start.steps if training.start else None,
            "weights_sha256": training.policy.sha256(),
            "state_sha256": last and last.sha256,
            "checkpoint": last and str(last.path),
            "run_dir": str(self.path),
        }
        self.directory.write("summary.json", self.result.summary)


def _name(training: Any) -> str:
    """Return what the folder is called, but for the time."""
    return f"{training.algorithm.name}-{plain_name(training.env.name)}-{training.cfg.seed}"


def plain_name(name: str) -> str:
    """Return an environment's name as it can be part of a folder's.

    >>> plain_name("ALE/Pong-v5")
    'ALE-Pong-v5'
    """
    return name.replace(":", ".").replace("/", "-")
