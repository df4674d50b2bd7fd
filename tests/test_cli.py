"""The command line: output, errors, signals and exit codes."""

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

from raceway.cli import COMMANDS, main
from raceway.ui.terminal_display import LiveDisplay, TextDisplay
from tests.conftest import GENEROUS

ROOT = Path(__file__).parents[1]
SMALL = ["--iterations", "3", "--episodes-per-iter", "20", "--num-envs", "20"]


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train_reinforce(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    code = main(["train", "reinforce", *arguments])
    return code, capsys.readouterr().out


def start_command(*arguments: str, **settings: Any) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "raceway", *arguments]
    return subprocess.Popen(command, text=True, env=environment, stdin=subprocess.DEVNULL, **settings)


def test_a_number_of_steps_must_be_finite(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("inf", "nan", "1e999"):
        with pytest.raises(SystemExit):
            main(["train", "reinforce", "--total-timesteps", text])
        assert "is not a whole number" in capsys.readouterr().err


def test_an_unknown_log_level_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACEWAY_LOG", "wrning")
    assert main(["list"]) == 1
    assert "unknown level in RACEWAY_LOG 'WRNING'. Did you mean 'WARNING'?" in capsys.readouterr().err
    monkeypatch.setenv("RACEWAY_LOG", "")
    assert main(["list"]) == 0


@pytest.mark.parametrize(("args", "code"), [((143,), 143), ((), 130), (("text",), 130)])
def test_a_keyboard_interrupt_may_have_an_exit_code(
    args: tuple[Any, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: list[str], **settings: Any) -> int:
        raise KeyboardInterrupt(*args)

    monkeypatch.setattr("raceway.cli._run", interrupted)
    assert main([]) == code


SUMMARY_FIELDS = {
    "algorithm", "env", "seed", "engine", "num_workers", "timesteps", "episodes", "wall_seconds", "train_seconds",
    "fps", "mean_return", "stopped_by", "weights_sha256", "run_dir",
}  # fmt: skip


def test_json_prints_a_summary_as_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = train_reinforce(capsys, "--env", "cartpole", "--local", "--json", "--seed", "7", *SMALL)
    summary = json.loads(out.splitlines()[-1])
    assert code == 0
    assert summary.keys() >= SUMMARY_FIELDS
    assert (summary["env"], summary["seed"], summary["engine"]) == ("CartPole-v1", 7, "inline")
    assert summary["episodes"] == 60
    assert 0 < summary["train_seconds"] < summary["wall_seconds"]
    assert summary["stopped_by"] == "iterations"
    assert re.fullmatch(r"[0-9a-f]{64}", summary["weights_sha256"])
    assert Path(summary["run_dir"], "config.json").exists()


MEAN_REWARD = r"Mean Reward \(last 100 episodes\):"


def test_a_log_has_the_banner_every_tenth_iteration_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = train_reinforce(capsys, "--local", "--iterations", "13", "--episodes-per-iter", "5", "--num-envs", "5")
    lines = out.splitlines()
    assert lines[:3] == ["=" * 60, "REINFORCE on CartPole-v1", "=" * 60]
    for text in ("  Environment: CartPole-v1", "  Observation dim: 4", "  Action dim: 2", "  Continuous actions: False",
                 "  Training iterations: 13", "  Episodes per iteration: 5", "  Total episodes: 65"):  # fmt: skip
        assert text in lines
    iterations = [line for line in lines if line.startswith("Iteration")]
    assert [int(line.split()[1]) for line in iterations] == [0, 10, 12]
    assert all(
        re.fullmatch(rf"Iteration +\d+ \| {MEAN_REWARD} +-?\d+\.\d \| Loss: +-?\d+\.\d{{4}}", line)
        for line in iterations
    )
    end = lines.index("Training Complete!")
    assert lines[end - 1] == lines[-1] == "=" * 60
    assert re.fullmatch(r"  Total time: \d+\.\d\ds", lines[end + 1])
    assert re.fullmatch(r"  Episodes: 65 \(\d+\.\d episodes/sec\)", lines[end + 2])
    assert any(re.fullmatch(rf"  {MEAN_REWARD} \d+\.\d", line) for line in lines)


def test_auto_prints_the_number_of_workers_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = train_reinforce(capsys, *SMALL)
    assert "auto chose no workers: an environment step takes" in out


def test_a_plot_is_saved(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    _, out = train_reinforce(capsys, "--local", "--plot", "--run-dir", "here", *SMALL)
    assert Path("here/returns.png").read_bytes().startswith(b"\x89PNG")
    assert "Plot saved to here/returns.png" in out


def test_seeds_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = train_reinforce(capsys, "--local", "--seeds", "2", "--seed", "5", "--json", *SMALL)
    summary = json.loads(out.splitlines()[-1])
    assert code == 0
    assert summary["seeds"] == [5, 6]
    assert {"mean", "iqm", "interval", "plot"} <= summary.keys()
    assert "bootstrap interval" in out


def test_env_kwargs_are_python_literals(capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = ["--env-kwargs", "length=4", "at=-1"]
    _, out = train_reinforce(capsys, "--env", "tests.odd_envs:Odd-v0", "--local", "--json", *kwargs, *SMALL)
    assert json.loads(out.splitlines()[-1])["timesteps"] == 3 * 20 * 4


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["train", "reinforc"], 1, "Did you mean 'reinforce'?"),
        (["train", "sarsa"], 1, "unknown algorithm 'sarsa'. Choose from: a2c,"),
        (["train", "reinforce", "--env", "cartpol"], 1, "Did you mean 'cartpole'?"),
        (["train", "reinforce", "--itrations", "3"], 2, "Did you mean '--iterations'?"),
        (["train", "reinforce", "--iterations", "many"], 2, "'many' is not a whole number"),
        (["train", "reinforce", "--num-workers", "few"], 2, "'few' is neither a whole number nor auto"),
        (["train", "reinforce", "--local", "--engine", "ray"], 2, "--local runs in one process"),
        (["train", "reinforce", "--env-kwargs", "length"], 2, "'length' is not key=value"),
        (["train"], 2, "raceway train <algorithm>"),
        (["train"], 2, "Algorithms: a2c, a3c,"),
        (
            ["train", "ppo", "cartpole"],
            2,
            "unexpected argument 'cartpole'. Settings are options, such as --env cartpole",
        ),
        (["train", "ppo", "--learning-rate", "1"], 2, "unknown option '--learning-rate'. The learning rate is --lr."),
        (["train", "ppo", "--steps", "1"], 2, "unknown option '--steps'. The number of steps is --total-timesteps."),
        (["train", "bc", "--updates", "1"], 2, "unknown option '--updates'. The number of updates is --total-updates."),
        (["train", "ppo", "--config", "nosuch"], 1, "there is no config file and no run nosuch."),
        (
            ["train", "dqn", "--network", "lstm", "--fragment-steps", "5", "--iterations", "1", "--local"],
            1,
            "sequences begin every 16 steps (sequence_steps 24 - burn_in 8), but the recurrent state is known every 5",
        ),
        (["train", "ppo", "--env", "nosuch", "--help"], 1, "unknown environment 'nosuch'."),
    ],
)
def test_mistakes_are_errors_without_a_traceback(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        exit_code = main(arguments)
    except SystemExit as exited:
        exit_code = int(exited.code or 0)
    error = capsys.readouterr().err
    assert (exit_code, "Traceback" in error) == (code, False)
    assert text in error


def test_a_failing_environment_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--env", "tests.odd_envs:Odd-v0", "--env-kwargs", "how=nan", "--local", *SMALL]
    assert main(["train", "reinforce", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: environment step returned an observation of [nan, nan]\n  in worker rollouts-0")
    assert "Traceback" not in error


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([command, "--help"])
    except SystemExit as exited:
        code = int(exited.code or 0)
    printed = capsys.readouterr()
    assert code == 0
    assert f"usage: raceway {command}" in printed.out + printed.err


def test_help_does_not_import_torch() -> None:
    program = (
        "import sys; from raceway.cli import main\ntry: main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


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
    with start_command("train", "reinforce", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        printed = ""
        for line in run.stdout:
            printed += line
            if line.startswith("Iteration   10"):
                run.send_signal(number)
                break
        output, error = run.communicate(timeout=GENEROUS)
    assert "Iteration   10" in printed, error
    assert run.returncode == code, error
    assert "Stopped. Resume with: raceway resume runs/reinforce-" in output
    summary = json.loads(output.splitlines()[-1])
    assert summary["stopped_by"] == reason
    assert f"Saved at {summary['timesteps']:,} steps" in output
    assert Path(summary["checkpoint"]).name == f"{summary['timesteps']:012d}"
    assert "Traceback" not in error


def test_a_terminal_has_a_live_display() -> None:
    leader, follower = pty.openpty()
    try:
        command = ["train", "reinforce", "--local", "--iterations", "30"]
        with start_command(*command, stdout=follower, stderr=follower) as run:
            os.close(follower)
            screen = b""
            while True:
                try:
                    chunk = os.read(leader, 65536)
                except OSError:  # the other side has closed it
                    break
                if not chunk:
                    break
                screen += chunk
            assert run.wait(GENEROUS) == 0
    finally:
        os.close(leader)
    text = screen.decode()
    for word in ("iteration", "return", "loss", "steps/s", "episodes/s", "left", "bottleneck", "rollouts", "█"):
        assert word in text
    assert "Training Complete!" in text


def test_displays_show_a_row_without_episodes() -> None:
    """A row as `ReportMetrics` returns it, without a run."""
    row = {
        "time/iterations": 1, "time/total_timesteps": 50, "time/episodes": 0, "time/time_elapsed": 1.0,
        "time/fps": 50.0, "time/rollouts_seconds": 0.9, "time/train_seconds": 0.1, "rollout/ep_rew_mean": None,
        "rollout/ep_len_mean": None, "rollout/iteration_rew_mean": None, "train/loss": 0.5, "returns": [],
    }  # fmt: skip
    from raceway.algorithms import find_algorithm
    from raceway.training.train import Training
    from raceway.ui.training_run import TrainingRun

    algorithm = find_algorithm("reinforce")
    run = TrainingRun(Training(algorithm, algorithm.settings(stop_seconds=100.0, engine="inline")), Path("here"))
    screen = io.StringIO()
    with LiveDisplay(Console(file=screen, force_terminal=True, width=100)) as live:
        live.on_train_start(run)
        live.on_iteration_end(run, row)
    assert "none yet" in screen.getvalue()
    log = io.StringIO()
    lines = TextDisplay(log)
    lines.on_iteration_end(run, row)
    assert "Mean Reward (last 100 episodes):     none" in log.getvalue()


@pytest.mark.parametrize("watcher", [TextDisplay, LiveDisplay])
def test_iterations_before_the_first_gradient_step_are_displayed(watcher: type[Any], tmp_path: Path) -> None:
    from raceway.training.train import train

    out = io.StringIO()
    display = (
        TextDisplay(out) if watcher is TextDisplay else LiveDisplay(Console(file=out, force_terminal=True, width=100))
    )
    result = train(
        "dqn", env="cartpole", engine="inline", iterations=2, callbacks=[display], run_dir=str(tmp_path / "run")
    )
    assert "train/loss" not in result.metrics[0]
    assert "none" in out.getvalue()
