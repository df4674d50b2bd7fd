"""Run directories written by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIG = {"env": "cartpole", "seed": 0, "lr": 0.001, "hidden": [64, 64], "engine": "inline", "num_workers": "auto"}


def make_run(
    path: Path,
    returns: Sequence[float | None] = (1.0, 2.0),
    *,
    algorithm: str = "ppo",
    started: str = "2026-01-01T00:00:00+0000",
    stopped_by: str | None = "iterations",
    error: str | None = None,
    more: Sequence[dict[str, Any]] = (),
    **settings: Any,
) -> Path:
    """Write a run directory with one row of metrics per mean return, and `more` metrics in each row."""
    path.mkdir(parents=True)
    config = {**CONFIG, **settings}
    about = {"schema": 1, "algorithm": algorithm, "config": config, "started": started, "num_workers": 0}
    (path / "config.json").write_text(json.dumps(about))
    with (path / "metrics.jsonl").open("w") as lines:
        for index, mean in enumerate(returns):
            lines.write(json.dumps(metrics_row(index + 1, mean) | (more[index] if more else {})) + "\n")
    if stopped_by is not None:
        env = "CartPole-v1" if config["env"] == "cartpole" else config["env"]
        summary = {"env": env, "stopped_by": stopped_by, "mean_return": returns[-1] if returns else None}
        summary |= {"timesteps": 100 * len(returns), "error": error}
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def metrics_row(iteration: int, mean: float | None) -> dict[str, Any]:
    """Return a row of metrics."""
    return {
        "time/iterations": iteration,
        "time/total_timesteps": 100 * iteration,
        "time/episodes": 10 * iteration,
        "time/time_elapsed": 0.5 * iteration,
        "time/fps": 200.0,
        "rollout/ep_rew_mean": mean,
        "returns": [],
    }
