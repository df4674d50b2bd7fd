"""What callbacks see of a run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from raceway.runs.config_file import read_config


class TrainingRun:
    """A run while it is being trained, as callbacks see it: settings, progress and the current policy."""

    directory: Path
    """The run directory."""
    training: Any
    """The `raceway.training.train.Training`. Its attributes may change in any release."""

    def __init__(self, training: Any, directory: Path) -> None:
        self.training, self.directory = training, directory

    def __repr__(self) -> str:
        length = f"{self.steps:,} {self.training.cfg.progress.noun}"
        return f"<run of {self.algorithm} on {self.env}, after {length}, in {self.directory}>"

    @property
    def algorithm(self) -> str:
        """The name of the algorithm; of several policies, the names of all, joined by `+`."""
        return str(self.training.label)

    @property
    def env(self) -> str:
        """The id of the environment, or the name of the function that makes it."""
        return str(self.training.env.name)

    @property
    def settings(self) -> Any:
        """The settings of the algorithm, a frozen dataclass: `run.settings.seed`, `run.settings.lr`."""
        return self.training.cfg

    @property
    def config(self) -> dict[str, Any]:
        """The settings as plain data, as they are in `config.json`."""
        config: dict[str, Any] = read_config(self.directory)["config"]
        return config

    @property
    def resumed_at(self) -> int | None:
        """Environment steps, or updates, of the checkpoint that the run was resumed from; None for a new run."""
        return self.training.resume_point.steps if self.training.resume_point else None

    @property
    def timesteps(self) -> int:
        """Environment steps so far; 0 if the run collects none."""
        return int(self.training.report.timesteps)

    @property
    def steps(self) -> int:
        """Progress so far: environment steps or, if the run collects none, updates (gradient steps)."""
        return int(self.training.report.steps)

    @property
    def iterations(self) -> int:
        """Iterations so far."""
        return int(self.training.report.iterations)

    @property
    def episodes(self) -> int:
        """Completed episodes so far."""
        return int(self.training.report.episodes)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes; None before the first."""
        mean: float | None = self.training.report.mean_return
        return mean

    @property
    def success_rate(self) -> float | None:
        """Mean of `is_success` over the last 100 episodes; None if none of them had it."""
        rate: float | None = self.training.report.episode_metrics.success_rate
        return rate

    @property
    def policy(self) -> Any:
        """A copy of the current policy, on the CPU: `act`, `evaluate`, `export_onnx`. Every access makes a new copy.

        With several agents, they are `TrainedPolicies`: `run.policy["agent_0"].act(obs)`.
        """
        trained, agent = self.training.result.policy, self.training.evaluator.current_agent()
        progress = {"run": str(self.directory), "steps": self.steps, "mean_return": self.mean_return}
        if self.training.policies:
            return trained.with_agents(agent, progress)
        return trained.with_agent(copy.deepcopy(agent).to("cpu").eval(), progress)
