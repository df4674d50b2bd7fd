"""The command line: what it prints, where, and how it ends."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raceway.cli import main
from raceway.ui.display import Lines, Live
from tests.conftest import GENEROUS

ROOT = Path(__file__).parents[1]
SMALL = ["--iterations", "3", "--episodes-per-iter", "20", "--num-envs", "20"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["train", "reinforce", *arguments])
    return code, capsys.readouterr().out


def started(*arguments: str, **settings: Any) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "raceway", *arguments]
    return subprocess.Popen(command, text=True, env=environment, stdin=subprocess.DEVNULL, **settings)


def test_a_number_that_is_not_finite_is_no_number_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("inf", "nan", "1e999"):
        with pytest.raises(SystemExit):
            main(["train", "reinforce", "--total-timesteps", text])
        assert "is not a whole number" in capsys.readouterr().err


def test_a_level_of_the_log_that_there_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACEWAY_LOG", "wrning")
    assert main(["list"]) == 1
    assert "unknown level in RACEWAY_LOG 'WRNING'. Did you mean 'WARNING'?" in capsys.readouterr().err
    monkeypatch.setenv("RACEWAY_LOG", "")
    assert main(["list"]) == 0


@pytest.mark.parametrize(("told", "code"), [((143,), 143), ((), 130), (("text",), 130)])
def test_what_ends_a_command_says_its_code(told: tuple[Any, ...], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: list[str]) -> int:
        raise KeyboardInterrupt(*told)

    monkeypatch.setattr("raceway.cli._run", stopped)
    assert main([]) == code


FIELDS = {
    "algorithm", "env", "seed", "engine", "num_workers", "timesteps", "episodes", "wall_seconds", "train_seconds",
    "fps", "mean_return", "stopped_by", "weights_sha256", "run_dir",
}  # fmt: skip


def test_the_last_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = trained(capsys, "--env", "cartpole", "--local", "--json", "--seed", "7", *SMALL)
    summary = json.loads(out.splitlines()[-1])
    assert code == 0
    assert summary.keys() >= FIELDS
    assert (summary["env"], summary["seed"], summary["engine"]) == ("CartPole-v1", 7, "inline")
    assert summary["episodes"] == 60
    assert 0 < summary["train_seconds"] < summary["wall_seconds"]
    assert summary["stopped_by"] == "iterations"
    assert re.fullmatch(r"[0-9a-f]{64}", summary["weights_sha256"])
    assert Path(summary["run_dir"], "config.json").exists()


def test_a_log_has_the_banner_every_tenth_iteration_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = trained(capsys, "--local", "--iterations", "13", "--episodes-per-iter", "5", "--num-envs", "5")
    lines = out.splitlines()
    assert lines[:3] == ["=" * 60, "REINFORCE on CartPole-v1", "=" * 60]
    for text in ("  Environment: CartPole-v1", "  Observation dim: 4", "  Action dim: 2", "  Continuous actions: False",
                 "  Training iterations: 13", "  Episodes per iteration: 5", "  Total episodes: 65"):  # fmt: skip
        assert text in lines
    shown = [line for line in lines if line.startswith("Iteration")]
    assert [int(line.split()[1]) for line in shown] == [0, 10, 12]
    assert all(
        re.fullmatch(r"Iteration +\d+ \| Mean Reward: +-?\d+\.\d \| Loss: +-?\d+\.\d{4}", line) for line in shown
    )
    end = lines.index("Training Complete!")
    assert lines[end - 1] == lines[-1] == "=" * 60
    assert re.fullmatch(r"  Total time: \d+\.\d\ds", lines[end + 1])
    assert re.fullmatch(r"  Episodes: 65 \(\d+\.\d episodes/sec\)", lines[end + 2])
    assert any(re.fullmatch(r"  Final Mean Reward: \d+\.\d", line) for line in lines)


def test_auto_says_what_it_chose_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = trained(capsys, *SMALL)
    assert "auto chose no workers: a step of the environment takes" in out


def test_a_plot_is_saved(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    _, out = trained(capsys, "--local", "--plot", "--run-dir", "here", *SMALL)
    assert Path("here/returns.png").read_bytes().startswith(b"\x89PNG")
    assert "Plot saved to here/returns.png" in out


def test_seeds_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = trained(capsys, "--local", "--seeds", "2", "--seed", "5", "--json", *SMALL)
    summary = json.loads(out.splitlines()[-1])
    assert code == 0
    assert summary["seeds"] == [5, 6]
    assert {"mean", "iqm", "interval", "plot"} <= summary.keys()
    assert "bootstrap interval" in out


def test_settings_of_the_environment_are_literals(capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = ["--env-kwargs", "length=4", "at=-1"]
    _, out = trained(capsys, "--env", "tests.odd_envs:Odd-v0", "--local", "--json", *kwargs, *SMALL)
    assert json.loads(out.splitlines()[-1])["timesteps"] == 3 * 20 * 4


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["train", "reinforc"], 1, "Did you mean 'reinforce'?"),
        (["train", "reinforce", "--env", "cartpol"], 1, "Did you mean 'cartpole'?"),
        (["train", "reinforce", "--itrations", "3"], 2, "Did you mean '--iterations'?"),
        (["train", "reinforce", "--iterations", "many"], 2, "'many' is not a whole number"),
        (["train", "reinforce", "--num-workers", "few"], 2, "'few' is neither a whole number nor auto"),
        (["train", "reinforce", "--local", "--engine", "ray"], 2, "--local is one process"),
        (["train", "reinforce", "--env-kwargs", "length"], 2, "'length' is not key=value"),
        (["train"], 2, "raceway train <algorithm>"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(arguments)
    except SystemExit as left:
        found = int(left.code or 0)
    error = capsys.readouterr().err
    assert (found, "Traceback" in error) == (code, False)
    assert text in error


def test_an_environment_that_breaks_down_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--env", "tests.odd_envs:Odd-v0", "--env-kwargs", "how=nan", "--local", *SMALL]
    assert main(["train", "reinforce", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: step of the environment gave an observation of [nan, nan]\n  in worker rollouts-0")
    assert "Traceback" not in error


def test_help_comes_from_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "reinforce", "--help"])
    text = capsys.readouterr().out
    for option in (
        "--env ", "--iterations ", "--episodes-per-iter ", "--total-timesteps ", "--num-workers N|auto",
        "--stop-return ", "--stop-seconds ", "--run-dir ", "--env-kwargs ", "--gamma ", "--seeds ", "--json",
    ):  # fmt: skip
        assert option in text
    assert "Discount factor. [0.99]" in text


def test_the_list_has_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "reinforce" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("engine", "number", "code", "reason"),
    [
        ("inline", signal.SIGINT, 130, "interrupt"),
        ("inline", signal.SIGTERM, 143, "terminated"),
        ("process", signal.SIGINT, 130, "interrupt"),
        ("process", signal.SIGTERM, 143, "terminated"),
    ],
)
def test_a_signal_stops_a_run_with_a_checkpoint_and_a_summary(engine: str, number: int, code: int, reason: str) -> None:
    arguments = ["--engine", engine, "--iterations", "1000000", "--json", "--num-workers", "2"]
    with started("train", "reinforce", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        seen = ""
        for line in run.stdout:
            seen += line
            if line.startswith("Iteration   10"):
                run.send_signal(number)
                break
        rest, error = run.communicate(timeout=GENEROUS)
    assert "Iteration   10" in seen, error
    assert run.returncode == code, error
    assert "Stopped. Go on with: raceway resume runs/reinforce-" in rest
    summary = json.loads(rest.splitlines()[-1])
    assert summary["stopped_by"] == reason
    assert f"Saved at {summary['timesteps']:,} steps" in rest
    assert Path(summary["checkpoint"]).name == f"{summary['timesteps']:012d}"
    assert "Traceback" not in error


def test_a_terminal_has_a_live_display() -> None:
    leader, follower = pty.openpty()
    try:
        command = ["train", "reinforce", "--local", "--iterations", "30"]
        with started(*command, stdout=follower, stderr=follower) as run:
            os.close(follower)
            screen = b""
            while True:
                try:
                    part = os.read(leader, 65536)
                except OSError:  # the other side has closed it
                    break
                if not part:
                    break
                screen += part
            assert run.wait(GENEROUS) == 0
    finally:
        os.close(leader)
    text = screen.decode()
    for word in ("iteration", "return", "loss", "steps/s", "episodes/s", "left", "bottleneck", "rollouts", "█"):
        assert word in text
    assert "Training Complete!" in text


def test_the_displays_are_fed_by_hand() -> None:
    """Rows as `ReportMetrics` makes them, drawn without a run."""
    row = {
        "time/iterations": 1, "time/total_timesteps": 50, "time/episodes": 0, "time/time_elapsed": 1.0,
        "time/fps": 50.0, "time/rollouts_seconds": 0.9, "time/train_seconds": 0.1, "rollout/ep_rew_mean": None,
        "rollout/ep_len_mean": None, "rollout/iteration_rew_mean": None, "train/loss": 0.5, "returns": [],
    }  # fmt: skip
    from raceway.algorithms import find_algorithm
    from raceway.training.train import Training

    found = find_algorithm("reinforce")
    training = Training(found, found.settings(stop_seconds=100.0, engine="inline"))
    drawn = io.StringIO()
    with Live(Console(file=drawn, force_terminal=True, width=100)) as live:
        live.begin(training, Path("here"))
        live.iteration(row)
    assert "none yet" in drawn.getvalue()
    said = io.StringIO()
    lines = Lines(said)
    lines.iteration(row)
    assert "Mean Reward:     none" in said.getvalue()


@pytest.mark.parametrize("watcher", [Lines, Live])
def test_iterations_before_anything_is_learnt_are_shown_too(watcher: type[Any], tmp_path: Path) -> None:
    from raceway.training.train import train

    out = io.StringIO()
    shown = Lines(out) if watcher is Lines else Live(Console(file=out, force_terminal=True, width=100))
    result = train(
        "dqn", env="cartpole", engine="inline", iterations=2, watchers=[shown], run_dir=str(tmp_path / "run")
    )
    assert "train/loss" not in result.metrics[0]
    assert "none" in out.getvalue()
