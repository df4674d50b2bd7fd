"""Displays of a run: one mean reward, evaluations, failures, shares of time; and a stream that its reader closes."""

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from rich.console import Console

from raceway.checkpoints.store import Checkpoints
from raceway.training.train import train
from raceway.training.train_seeds import train_seeds
from raceway.ui.phase_times import PhaseTimes
from raceway.ui.terminal_display import LiveDisplay, TextDisplay

SMALL: dict[str, Any] = {"env": "cartpole", "engine": "inline", "num_envs": 4, "fragment_steps": 64, "hidden": (8,)}


def test_there_is_one_mean_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the last 100 episodes, in every line of the log and in the comparison of seeds."""
    monkeypatch.setattr("raceway.training.train_seeds.plot_seeds", lambda *_, **__: "plot.png")
    logs = [io.StringIO(), io.StringIO()]
    displays = iter([TextDisplay(log) for log in logs])
    outcome = train_seeds(
        "a2c", [0, 1], make_callbacks=lambda: [next(displays)], run_dir=str(tmp_path), metrics_interval=0.0,
        iterations=11, **SMALL,
    )  # fmt: skip
    for result, log in zip(outcome.results, logs, strict=True):
        printed = re.findall(r"Mean Reward(.*?): +([\d.]+)", log.getvalue())
        means = [f"{result.metrics[number]['rollout/ep_rew_mean']:.1f}" for number in (0, 10, 10)]
        assert printed == [(" (last 100 episodes)", mean) for mean in means]
        assert f"  seed {result.summary['seed']}: {means[-1]}" in outcome.lines
    assert any("Mean Reward (last 100 episodes)" in line for line in outcome.lines)


class FailsThreeTimes(CartPoleEnv):
    """Fails in three of its first steps, over all instances."""

    num_steps = 0

    def step(self, action: Any) -> Any:
        FailsThreeTimes.num_steps += 1
        if self.num_steps in (50, 100, 150):
            raise RuntimeError("the simulator broke down")
        return super().step(action)


def test_evaluations_and_failures_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailsThreeTimes, "num_steps", 0)
    log, screen = io.StringIO(), io.StringIO()
    live = LiveDisplay(Console(file=screen, force_terminal=True, width=120))
    result = train(
        "a2c", callbacks=[TextDisplay(log), live], run_dir=str(tmp_path / "run"), eval_every=256, eval_episodes=2,
        iterations=4, **SMALL | {"env": FailsThreeTimes},
    )  # fmt: skip
    evaluated = {
        row["time/total_timesteps"]: row["eval/mean_reward"] for row in result.metrics if "eval/mean_reward" in row
    }
    assert evaluated
    for steps, mean in evaluated.items():
        assert f"Evaluation at {steps:,} steps | Mean Reward (2 episodes): {mean:.1f} ± " in log.getvalue()
    assert result.summary["env_failures"] == result.metrics[-1]["rollout/env_failures"] == 3
    for text in (log.getvalue(), screen.getvalue()):
        assert f"Last evaluation: {result.summary['eval_mean_return']:.1f} (best: " in text
        assert "Environment failures: 3 (each discarded an episode)" in text
    assert "evaluation" in screen.getvalue()


@pytest.mark.parametrize("waiting", [0.0, 4.7, 47.0])
def test_waiting_is_a_part_of_a_phase_and_not_counted_twice(waiting: float) -> None:
    times = PhaseTimes()
    for _ in range(3):
        times.add({"time/rollouts_seconds": 4.7, "time/wait_rollouts_seconds": waiting, "time/train_seconds": 0.3})
    shares = times.shares()
    assert sum(share for share, _ in shares.values()) == pytest.approx(1)
    assert all(0 <= part <= share for share, part in shares.values())
    assert times.texts() == ["rollouts 94%" + (" (waiting 94%)" if waiting else ""), "train 6%"]


def test_seconds_of_saving_and_evaluating_belong_to_no_phase(tmp_path: Path) -> None:
    result = train(
        "a2c", run_dir=str(tmp_path), iterations=6, save_every=1, eval_every=1, metrics_interval=0.0, **SMALL
    )
    for row, following in zip(result.metrics, result.metrics[1:], strict=False):
        phases = sum(following[f"time/{phase}_seconds"] for phase in ("rollouts", "train", "weights"))
        elapsed = following["time/time_elapsed"] - row["time/time_elapsed"]
        assert phases + following["time/save_seconds"] <= elapsed * 1.0001


def test_training_continues_when_its_output_is_closed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raceway", "train", "ppo", "--local", "--num-envs", "4", "--iterations", "40"]
    with subprocess.Popen(
        [*command, "--run-dir", str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.readline()
        run.stdout.close()
        error = run.stderr.read()
    assert run.returncode == 0, error
    assert "Traceback" not in error
    assert "the output stream was closed by its reader" in error
    assert Checkpoints(tmp_path / "run" / "checkpoints").find("latest").about["iterations"] == 40
