"""`raceway eval`: figures of a trained policy, and films of it."""

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
from raceway.commands.eval import Progress, eval_run
from raceway.envs import EnvSettings
from raceway.errors import ConfigError
from raceway.loaded_policy import load
from raceway.rollouts.video import Film, film_path
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


def printed(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    """Return what `--json` prints."""
    assert eval_run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def pictures_of(film: Path, width: int, height: int, fps: int) -> np.ndarray:
    """Return the pictures of a film, which must be of this size and as many a second."""
    program = imageio_ffmpeg.get_ffmpeg_exe()
    told = subprocess.run([program, "-i", film], capture_output=True, text=True).stderr
    assert f", {width}x{height}" in told
    assert f" {fps} fps," in told
    how = ["-v", "error", "-i", str(film), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    content = subprocess.run([program, *how], capture_output=True, check=True).stdout
    return np.frombuffer(content, np.uint8).reshape(-1, height, width, 3)


@pytest.mark.parametrize("text", ["²", "-1", "1.5", "x"])
def test_what_is_no_number_is_told(run: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=f"which must be best, latest, or a number of steps, not '{text}'"):
        eval_run([str(run), f"--which={text}"])
    for option in ("--episodes", "--seed"):
        with pytest.raises(SystemExit):
            eval_run([str(run), f"{option}={text}"])
        assert f"'{text}' is no whole number" in capsys.readouterr().err


def test_figures(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, run)
    wanted = load(run).evaluate(20, seed=0)
    assert found["returns"] == wanted.returns.tolist()
    assert found["lengths"] == wanted.lengths.tolist()
    assert found["mean_return"] == wanted.mean_return
    assert found["std_return"] == wanted.std_return
    assert (found["episodes"], found["algorithm"], found["env"]) == (20, "ppo", "CartPole-v1")


def test_options(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = load(run, "latest")
    wanted = policy.evaluate(4, seed=7, deterministic=False)
    how = ["--episodes", 4, "--seed", 7, "--no-deterministic"]
    assert printed(capsys, run, *how, "--which", "latest")["returns"] == wanted.returns.tolist()
    assert printed(capsys, run, *how, "--which", policy.about["steps"])["returns"] == wanted.returns.tolist()
    assert printed(capsys, run, *how, "--deterministic")["returns"] != wanted.returns.tolist()


def test_what_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert eval_run([str(run), "--episodes", "3"]) == 0
    said = capsys.readouterr()
    wanted = load(run).evaluate(3)
    assert said.out.startswith("ppo on CartPole-v1, after ")
    assert f"  mean return  {wanted.mean_return:.2f} ± {wanted.std_return:.2f}, from " in said.out
    assert f"  mean length  {wanted.mean_length:.1f}, from {wanted.lengths.min()} to" in said.out
    assert said.err == ""  # it did not take long


@pytest.mark.parametrize("live", [False, True])
def test_long_work_shows_how_far_it_is(
    run: Path, tmp_path: Path, live: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line of a terminal, or in a line of a log now and then."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: live, raising=False)
    monkeypatch.setattr(Progress, "EVERY", (0.0, 0.0))
    assert eval_run([str(run), "--episodes", "3", "--video", str(tmp_path / "film.gif")]) == 0
    said = capsys.readouterr().err
    begin, end = ("\r\x1b[K", "") if live else ("", "\n")
    assert f"{begin}  3 of 3 episodes{end}" in said
    assert f"{begin}  7 pictures{end}" in said
    assert said.endswith("\r\x1b[K" if live else " pictures\n")


def test_a_log_is_not_filled_with_progress() -> None:
    stream, now = io.StringIO(), 0.0
    with Progress("of 9 episodes", stream, lambda: now) as progress:
        for done in range(9):
            progress(done)
            now += 4.0
    assert stream.getvalue() == "  3 of 9 episodes\n  6 of 9 episodes\n"


def test_an_environment_is_not_imported_unasked(odd_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--env"):
        eval_run([str(odd_run), "--episodes", "2"])
    trusted = printed(capsys, odd_run, "--episodes", 2, "--trust")
    assert trusted["lengths"] == [8, 8]
    assert printed(capsys, odd_run, "--episodes", 2, "--env", "tests.odd_envs:Odd-v0")["returns"] == trusted["returns"]


def test_a_film(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film = tmp_path / "film.mp4"
    before = dict(os.environ)
    found = printed(capsys, run, "--episodes", 2, "--video", film, "--video-episodes", 2)
    assert dict(os.environ) == before
    assert found["video"] == str(film)
    assert len(found["video_returns"]) == 2
    pictures = pictures_of(film, 600, 400, 50)  # as CartPole says
    assert len(pictures) == sum(found["video_returns"]) + 2  # of every step, and of every beginning
    assert 100 < np.mean(pictures[0]) < 255  # the cart and the pole on white
    assert not np.array_equal(pictures[0], pictures[5])
    assert [file.name for file in tmp_path.iterdir()] == ["film.mp4"]


def test_a_gif(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film = tmp_path / "film.gif"
    assert eval_run([str(run), "--episodes", "2", "--video", str(film)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(f"Video saved to {film}: return ")
    num_pictures = float(said.rpartition(" ")[2]) + 1
    with Image.open(film) as gif:
        assert gif.size == (600, 400)
        shown = [picture.info["duration"] for picture in ImageSequence.Iterator(gif)]
    assert len(shown) > 5
    assert sum(shown) == 20 * num_pictures  # at CartPole's 50 a second; the same picture twice is one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--video", "film.avi"], r"ends in .mp4 or .gif, not as 'film.avi'"),
        (["--video", "gone/film.mp4"], "there is no folder gone"),
        (["--video-episodes", "2"], "Give --video FILE too"),
        (["--which", "bset"], "best, latest, or a number of steps"),
    ],
)
def test_mistakes_are_told_before_anything_is_played(
    run: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raceway.loaded_policy.evaluate", lambda *_, **__: pytest.fail("it was played"))
    with pytest.raises(ConfigError, match=said):
        eval_run([str(run), *arguments])


def test_an_environment_that_cannot_render_says_so(
    odd_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raceway.loaded_policy.evaluate", lambda *_, **__: pytest.fail("it was played"))
    with pytest.raises(ConfigError, match=r"Odd-v0 cannot be filmed: it has no rgb_array among its render modes, \[\]"):
        eval_run([str(odd_run), "--trust", "--video", str(tmp_path / "film.mp4")])


@pytest.mark.parametrize("arguments", [["--episodes", "0"], ["--seed", "-1"], ["--video-episodes", "x"]])
def test_numbers_are_checked(run: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        eval_run([str(run), *arguments])
    assert stop.value.code == 2
    assert "is no whole number from" in capsys.readouterr().err


class Drawn(Odd):
    """Draws a grey that gets lighter, 5 by 7, in games of two lives; or fails to."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    tells_scores = True

    def __init__(self, render_mode: str | None = None, wrong: str = "") -> None:
        super().__init__()
        self.render_mode, self.wrong, self.steps = render_mode, wrong, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        game_over = truncated and self.steps % 16 == 0
        return obs, reward, terminated, truncated, {"episode": {"r": 99.0}} if game_over else info

    def render(self) -> Any:
        if self.wrong == "raises":
            raise OSError("no screen")
        kind = np.float32 if self.wrong == "kind" else np.uint8
        return np.full((5, 7, 3), 10 * self.now, kind)


class First:
    """Chooses 0, and keeps what it is asked."""

    def __init__(self) -> None:
        self.resets, self.asked = 0, 0

    def reset(self) -> None:
        self.resets += 1

    def act(self, obs: Any, deterministic: bool, seed: int | None = None) -> int:
        self.asked += 1
        return 0


def test_a_film_of_a_game_goes_on_after_a_life(tmp_path: Path) -> None:
    acting: Any = First()
    path = film_path(tmp_path / "odd.mp4")
    with Film(EnvSettings(Drawn)) as film:
        assert film.fps == 10.0
        film.shoot(acting, path, 1, seed=0, deterministic=True)
    assert film.returns == [99.0]
    assert acting.asked == 16
    pictures = pictures_of(path, 8, 6, 10)  # the codec takes even numbers only
    assert len(pictures) == 17
    assert pictures[0].mean() < pictures[4].mean() < pictures[8].mean()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("raises", "Drawn cannot render here: OSError: no screen"), ("kind", r"rendered float32\(5, 7, 3\)")],
)
def test_what_is_no_picture_is_told(wrong: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said), Film(EnvSettings(Drawn, {"wrong": wrong})):
        pytest.fail("it was opened")


def test_a_film_that_fails_leaves_nothing(tmp_path: Path) -> None:
    class Failing(First):
        def act(self, obs: Any, deterministic: bool, seed: int | None = None) -> int:
            if self.asked == 3:
                raise RuntimeError("no more")
            return super().act(obs, deterministic, seed)

    acting: Any = Failing()
    with Film(EnvSettings(Drawn)) as film, pytest.raises(RuntimeError, match="no more"):
        film.shoot(acting, tmp_path / "odd.mp4", 1, seed=0, deterministic=True)
    assert not list(tmp_path.iterdir())


def test_a_film_of_a_task() -> None:
    given: list[float] = []

    class Tasks(Odd):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
        action_space = spaces.Discrete(2)

        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__()

        def sample_tasks(self, num: int, seed: int) -> Any:
            return np.random.default_rng(seed).random(num)

        def set_task(self, task: Any) -> None:
            given.append(float(task))

        def render(self) -> Any:
            return np.zeros((2, 2, 3), np.uint8)

    with Film(EnvSettings(Tasks)) as film:
        assert film.fps == 30.0
        pictures = list(film._pictures(First(), 2, 0, True))  # type: ignore[arg-type]
    assert len(pictures) == 18
    assert len(set(given)) == 2
    assert isinstance(film.env, gym.Env)
