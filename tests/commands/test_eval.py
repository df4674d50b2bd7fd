"""`raceway eval`: the returns of a trained policy, and videos of it."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image, ImageSequence

from raceway import train
from raceway.commands import eval as eval_command
from raceway.commands.progress_line import Progress
from raceway.envs import EnvSettings
from raceway.errors import ConfigError
from raceway.loaded_policy import load
from raceway.rollouts.video import VideoRecorder, check_video_path
from tests.odd_envs import Odd


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "ppo"
    train("ppo", env="cartpole", total_timesteps=1500, engine="inline", run_dir=str(path))
    return path


@pytest.fixture(scope="module")
def odd_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "odd"
    train("ppo", env="tests.odd_envs:Odd-v0", total_timesteps=500, engine="inline", run_dir=str(path))
    return path


def json_report(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    """Return the JSON object that `--json` prints."""
    assert eval_command.run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def read_frames(video: Path, width: int, height: int, fps: int) -> np.ndarray:
    """Return the frames of a video, which must have this size and rate."""
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    description = subprocess.run([ffmpeg, "-i", video], capture_output=True, text=True).stderr
    assert f", {width}x{height}" in description
    assert f" {fps} fps," in description
    options = ["-v", "error", "-i", str(video), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    content = subprocess.run([ffmpeg, *options], capture_output=True, check=True).stdout
    return np.frombuffer(content, np.uint8).reshape(-1, height, width, 3)


@pytest.mark.parametrize("text", ["²", "-1", "1.5", "x"])
def test_numbers_are_checked(run: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=f"which must be best, latest, or a number of steps, not '{text}'"):
        eval_command.run([str(run), f"--which={text}"])
    for option in ("--episodes", "--seed"):
        with pytest.raises(SystemExit):
            eval_command.run([str(run), f"{option}={text}"])
        assert f"'{text}' is not a whole number" in capsys.readouterr().err


def test_the_report_is_that_of_evaluate(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json_report(capsys, run)
    expected = load(run).evaluate(20, seed=0)
    assert report["returns"] == expected.returns.tolist()
    assert report["lengths"] == expected.lengths.tolist()
    assert report["mean_return"] == expected.mean_return
    assert report["std_return"] == expected.std_return
    assert (report["episodes"], report["algorithm"], report["env"]) == (20, "ppo", "CartPole-v1")


def test_options(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = load(run, "latest")
    expected = policy.evaluate(4, seed=7, deterministic=False).returns.tolist()
    options = ["--episodes", 4, "--seed", 7, "--no-deterministic"]
    assert json_report(capsys, run, *options, "--which", "latest")["returns"] == expected
    assert json_report(capsys, run, *options, "--which", policy.about["steps"])["returns"] == expected
    assert json_report(capsys, run, *options, "--deterministic")["returns"] != expected


def test_printed_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert eval_command.run([str(run), "--episodes", "3"]) == 0
    printed = capsys.readouterr()
    expected = load(run).evaluate(3)
    assert printed.out.startswith("ppo on CartPole-v1, after ")
    assert f"  mean return  {expected.mean_return:.2f} ± {expected.std_return:.2f}, from " in printed.out
    assert f"  mean length  {expected.mean_length:.1f}, from {expected.lengths.min()} to" in printed.out
    assert printed.err == ""  # too short for a display of progress


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_is_displayed(
    run: Path, tmp_path: Path, is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line of a terminal, or as lines of a log."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(Progress, "INTERVALS", (0.0, 0.0))
    assert eval_command.run([str(run), "--episodes", "3", "--video", str(tmp_path / "video.gif")]) == 0
    progress = capsys.readouterr().err
    begin, end = ("\r\x1b[K", "") if is_terminal else ("", "\n")
    assert f"{begin}  3 of 3 episodes{end}" in progress
    assert f"{begin}  7 frames{end}" in progress
    assert progress.endswith("\r\x1b[K" if is_terminal else " frames\n")


def test_a_log_is_not_filled_with_progress() -> None:
    stream, now = io.StringIO(), 0.0
    with Progress("of 9 episodes", stream, lambda: now) as progress:
        for count in range(9):
            progress(count)
            now += 4.0
    assert stream.getvalue() == "  3 of 9 episodes\n  6 of 9 episodes\n"


def test_the_module_of_an_environment_is_not_imported_without_trust(
    odd_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="--env"):
        eval_command.run([str(odd_run), "--episodes", "2"])
    trusted = json_report(capsys, odd_run, "--episodes", 2, "--trust")
    assert trusted["lengths"] == [8, 8]
    named = json_report(capsys, odd_run, "--episodes", 2, "--env", "tests.odd_envs:Odd-v0")
    assert named["returns"] == trusted["returns"]


def test_an_mp4(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = tmp_path / "video.mp4"
    environment = dict(os.environ)
    report = json_report(capsys, run, "--episodes", 2, "--video", video, "--video-episodes", 2)
    assert dict(os.environ) == environment
    assert report["video"] == str(video)
    assert len(report["video_returns"]) == 2
    frames = read_frames(video, 600, 400, 50)  # from CartPole's metadata
    assert len(frames) == sum(report["video_returns"]) + 2  # one per step, and one per reset
    assert 100 < np.mean(frames[0]) < 255  # the cart and the pole on white
    assert not np.array_equal(frames[0], frames[5])
    assert [file.name for file in tmp_path.iterdir()] == ["video.mp4"]


def test_a_gif(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = tmp_path / "video.gif"
    assert eval_command.run([str(run), "--episodes", "2", "--video", str(video)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"Video saved to {video}: return ")
    num_frames = float(line.rpartition(" ")[2]) + 1
    with Image.open(video) as gif:
        assert gif.size == (600, 400)
        durations = [frame.info["duration"] for frame in ImageSequence.Iterator(gif)]
    assert len(durations) > 5
    assert sum(durations) == 20 * num_frames  # at CartPole's 50 frames per second; equal frames are merged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--video", "video.avi"], r"must end in .mp4 or .gif, not 'video.avi'"),
        (["--video", "gone/video.mp4"], "there is no directory gone"),
        (["--video-episodes", "2"], "Add --video FILE"),
        (["--which", "bset"], "best, latest, or a number of steps"),
    ],
)
def test_mistakes_are_errors_before_the_evaluation(
    run: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raceway.runs.trained_policy.evaluate", lambda *_, **__: pytest.fail("it was evaluated"))
    with pytest.raises(ConfigError, match=message):
        eval_command.run([str(run), *arguments])


def test_an_environment_that_cannot_render_is_an_error(
    odd_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raceway.runs.trained_policy.evaluate", lambda *_, **__: pytest.fail("it was evaluated"))
    with pytest.raises(ConfigError, match=r"Odd-v0 cannot be recorded: rgb_array is not one of its render modes, \[\]"):
        eval_command.run([str(odd_run), "--trust", "--video", str(tmp_path / "video.mp4")])


@pytest.mark.parametrize("arguments", [["--episodes", "0"], ["--seed", "-1"], ["--video-episodes", "x"]])
def test_counts_have_a_minimum(run: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        eval_command.run([str(run), *arguments])
    assert stop.value.code == 2
    assert "is not a whole number of at least" in capsys.readouterr().err


class Rendered(Odd):
    """Renders 5 by 7 pixels of grey that get lighter, in games of two lives; or fails to, as `fault` says."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    reports_scores = True

    def __init__(self, render_mode: str | None = None, fault: str = "") -> None:
        super().__init__()
        self.render_mode, self.fault, self.steps = render_mode, fault, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        game_over = truncated and self.steps % 16 == 0
        return obs, reward, terminated, truncated, {"episode": {"r": 99.0}} if game_over else info

    def render(self) -> Any:
        if self.fault == "raises":
            raise OSError("no screen")
        dtype = np.float32 if self.fault == "dtype" else np.uint8
        return np.full((5, 7, 3), 10 * self.now, dtype)


class ConstantPolicy:
    """Always takes action 0, and counts the calls."""

    def __init__(self) -> None:
        self.num_resets, self.num_actions = 0, 0

    def reset(self) -> None:
        self.num_resets += 1

    def act(self, obs: Any, deterministic: bool, seed: int | None = None, reward: Any = None) -> int:
        self.num_actions += 1
        return 0


def test_a_video_of_a_game_continues_after_a_life(tmp_path: Path) -> None:
    policy: Any = ConstantPolicy()
    path = check_video_path(tmp_path / "odd.mp4")
    with VideoRecorder(EnvSettings(Rendered)) as recorder:
        assert recorder.fps == 10.0
        recorder.record(policy, path, 1, seed=0, deterministic=True)
    assert recorder.returns == [99.0]
    assert policy.num_actions == 16
    frames = read_frames(path, 8, 6, 10)  # the codec needs even sizes
    assert len(frames) == 17
    assert frames[0].mean() < frames[4].mean() < frames[8].mean()


@pytest.mark.parametrize(
    ("fault", "message"),
    [("raises", "Rendered cannot render here: OSError: no screen"), ("dtype", r"rendered float32\(5, 7, 3\)")],
)
def test_an_invalid_frame_is_an_error(fault: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message), VideoRecorder(EnvSettings(Rendered, {"fault": fault})):
        pytest.fail("it was opened")


def test_a_failed_recording_leaves_no_file(tmp_path: Path) -> None:
    class FailingPolicy(ConstantPolicy):
        def act(self, obs: Any, deterministic: bool, seed: int | None = None, reward: Any = None) -> int:
            if self.num_actions == 3:
                raise RuntimeError("no more")
            return super().act(obs, deterministic, seed)

    policy: Any = FailingPolicy()
    with VideoRecorder(EnvSettings(Rendered)) as recorder, pytest.raises(RuntimeError, match="no more"):
        recorder.record(policy, tmp_path / "odd.mp4", 1, seed=0, deterministic=True)
    assert not list(tmp_path.iterdir())


def test_every_episode_of_a_video_has_its_own_task() -> None:
    tasks: list[float] = []

    class Tasks(Odd):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
        action_space = spaces.Discrete(2)

        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__()

        def sample_tasks(self, num: int, seed: int) -> Any:
            return np.random.default_rng(seed).random(num)

        def set_task(self, task: Any) -> None:
            tasks.append(float(task))

        def render(self) -> Any:
            return np.zeros((2, 2, 3), np.uint8)

    with VideoRecorder(EnvSettings(Tasks)) as recorder:
        assert recorder.fps == 30.0
        frames = list(recorder._frames(ConstantPolicy(), 2, 0, True))  # type: ignore[arg-type]
    assert len(frames) == 18
    assert len(set(tasks)) == 2
    assert isinstance(recorder.env, gym.Env)
