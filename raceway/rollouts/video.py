"""Videos of a policy acting in an environment. No display is needed."""

from __future__ import annotations

import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from raceway.agents.acting_policy import ActingPolicy
from raceway.envs import EnvSettings, make_env
from raceway.errors import ConfigError, RacewayError
from raceway.rl.seeding import Purpose, derive_seed, episode_seed

Array = np.ndarray

VIDEO_SUFFIXES = (".mp4", ".gif")
_DEFAULT_FPS = 30.0
_SHARD = 1  # its episodes differ from those of an evaluation, which uses shard 0


def check_video_path(path: str | Path) -> Path:
    """Return the path of a video, after checking that one can be written there."""
    video = Path(path)
    if video.suffix.lower() not in VIDEO_SUFFIXES:
        raise ConfigError(f"the name of a video must end in {' or '.join(VIDEO_SUFFIXES)}, not {str(path)!r}")
    if not video.parent.is_dir():
        raise ConfigError(f"there is no directory {video.parent} for the video {video.name}. Create it first.")
    try:
        if video.suffix.lower() == ".gif":
            import PIL.Image  # noqa: F401
        else:
            import imageio.v2  # noqa: F401
            import imageio_ffmpeg  # type: ignore[import-untyped,unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"a video needs {error.name}: pip install 'raceway[video]'") from error
    return video


@dataclass
class VideoRecorder:
    """Records an environment as a video. Use it as a context manager.

    Args:
        settings: the environment. Entering the context fails if it cannot be rendered.
    """

    settings: EnvSettings
    returns: list[float] = field(default_factory=list)
    """Returns of the recorded episodes."""

    def __enter__(self) -> VideoRecorder:
        self._headless = _headless()
        self._headless.__enter__()
        try:
            self.env = self._make_env()
        except BaseException:
            self._headless.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.env.close()
        finally:
            self._headless.__exit__(None, None, None)

    @property
    def fps(self) -> float:
        """Frames per second, from the environment's metadata."""
        fps = self.env.metadata.get("render_fps")
        return float(fps) if isinstance(fps, (int, float)) and 0 < fps < math.inf else _DEFAULT_FPS

    def _make_env(self) -> gym.Env:
        """Create the environment, and render one frame to check that it can be recorded."""
        settings, name = self.settings, self.settings.name
        try:
            plain = make_env(settings)
            modes = list(plain.metadata.get("render_modes") or [])
            plain.close()
            if "rgb_array" not in modes:
                raise ConfigError(f"{name} cannot be recorded: rgb_array is not one of its render modes, {modes}")
            env = make_env(EnvSettings(settings.env, {**settings.kwargs, "render_mode": "rgb_array"}, "stepped"))
            try:
                env.reset(seed=0)
                self._render(env)
            except BaseException:
                _try_to_close(env)
                raise
        except RacewayError:
            raise
        except Exception as error:  # rendering libraries may raise anything
            raise ConfigError(f"{name} cannot render here: {type(error).__name__}: {error}{_advice(error)}") from error
        return env

    def record(
        self, policy: ActingPolicy, path: Path, num_episodes: int, *, seed: int, deterministic: bool,
        on_progress: Callable[[int], None] = lambda num_frames: None,
    ) -> None:  # fmt: skip
        """Run episodes and write a video of them; `on_progress` is called with the number of frames so far."""
        partial_path = path.with_name(f".{path.stem}.part{path.suffix}")
        frames = self._frames(policy, num_episodes, seed, deterministic)
        try:
            _write(partial_path, _counted(frames, on_progress), self.fps)
            os.replace(partial_path, path)
        finally:
            partial_path.unlink(missing_ok=True)

    def _frames(self, policy: ActingPolicy, num: int, seed: int, deterministic: bool) -> Iterator[Array]:
        env, seed = self.env, derive_seed(seed, Purpose.EVALUATION)
        action_seed = derive_seed(seed, Purpose.ACTIONS, _SHARD)
        if env.has_wrapper_attr("set_task"):
            tasks = env.get_wrapper_attr("sample_tasks")(num, derive_seed(seed, Purpose.TASKS, _SHARD))
        for episode in range(num):
            if env.has_wrapper_attr("set_task"):
                env.get_wrapper_attr("set_task")(tasks[episode])
            obs, _ = env.reset(seed=episode_seed(seed, _SHARD, 0, episode))
            policy.reset()
            first, total, over = True, 0.0, False
            reward: Any = 0.0
            yield self._render(env)
            while not over:
                action = policy.act(obs, deterministic, seed=action_seed + episode if first else None, reward=reward)
                obs, reward, terminated, truncated, info = env.step(action)
                first, total, over = False, total + float(reward), terminated or truncated
                yield self._render(env)
                if over and self._has_lives_left(info):
                    obs, _ = env.reset()
                    policy.reset()
                    over = False
            self.returns.append(float(info["episode"]["r"]) if "episode" in info else total)
        policy.reset()

    def _has_lives_left(self, info: dict[str, Any]) -> bool:
        """Whether only a life ended, and the game continues."""
        env = self.env
        return env.has_wrapper_attr("reports_scores") and "episode" not in info

    def _render(self, env: gym.Env) -> Array:
        frame: Any = env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            kind = f"{frame.dtype}{frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ConfigError(f"{self.settings.name} rendered {kind}; a frame must be uint8 of (height, width, 3)")
        return frame


def _counted(frames: Iterable[Array], on_progress: Callable[[int], None]) -> Iterator[Array]:
    for number, frame in enumerate(frames, 1):
        on_progress(number)
        yield frame


def _write(path: Path, frames: Iterable[Array], fps: float) -> None:
    if path.suffix.lower() == ".gif":
        from PIL import Image

        images = (Image.fromarray(frame) for frame in frames)
        next(images).save(path, "GIF", save_all=True, append_images=images, duration=round(1000 / fps), loop=0)
        return
    import imageio.v2

    # No scaling to multiples of 16: the codec only needs an even number of rows and columns.
    options: dict[str, Any] = {"codec": "libx264", "macro_block_size": 1, "quality": 8, "ffmpeg_log_level": "error"}
    writer: Any = imageio.v2.get_writer(path, "FFMPEG", mode="I", fps=fps, **options)
    with closing(writer):  # as a context manager, it would not end its process after an error
        for frame in frames:
            height, width = frame.shape[:2]
            writer.append_data(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), "edge"))


def _try_to_close(env: gym.Env) -> None:
    try:
        env.close()
    except Exception:  # an environment that failed to open may fail to close
        pass


def _advice(error: BaseException) -> str:
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if not any(f"{os.sep}mujoco{os.sep}" in file for file in files):
        return ""
    return (
        ". MuJoCo renders with OpenGL: set MUJOCO_GL to egl, osmesa, or, with a display, glfw, whichever is installed"
    )


@contextmanager
def _headless() -> Iterator[None]:
    """Let pygame and MuJoCo render without a display, unless the environment variables already say how."""
    defaults = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        defaults["MUJOCO_GL"] = "egl"
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
