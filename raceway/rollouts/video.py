"""Films: what an environment looks like while a policy plays in it. No screen is needed."""

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

from raceway.agents.inference import ActingPolicy
from raceway.envs import EnvSettings, Purpose, make_env, seed_of, seed_of_episode
from raceway.errors import ConfigError, RacewayError

Array = np.ndarray

KINDS = (".mp4", ".gif")
_USUAL_FPS = 30.0
_SHARD = 1  # its episodes are others than those of an evaluation, which are of shard 0


def film_path(path: str | Path) -> Path:
    """Return where a film is to go, having checked that it can be made there."""
    wanted = Path(path)
    if wanted.suffix.lower() not in KINDS:
        raise ConfigError(f"a video ends in {' or '.join(KINDS)}, not as {str(path)!r} does")
    if not wanted.parent.is_dir():
        raise ConfigError(f"there is no folder {wanted.parent} for the video {wanted.name}")
    try:
        if wanted.suffix.lower() == ".gif":
            import PIL.Image  # noqa: F401
        else:
            import imageio.v2  # noqa: F401
            import imageio_ffmpeg  # type: ignore[import-untyped,unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"a video needs {error.name}: pip install 'raceway[video]'") from error
    return wanted


@dataclass
class Film:
    """An environment that shows what it looks like. Use it as a context.

    Args:
        settings: which environment. Whether it can be filmed is seen at once.
    """

    settings: EnvSettings
    returns: list[float] = field(default_factory=list)
    """Of the episodes that were played."""

    def __enter__(self) -> Film:
        self._headless = _headless()
        self._headless.__enter__()
        try:
            self.env = self._open()
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
        """Pictures a second, as the environment says."""
        told = self.env.metadata.get("render_fps")
        return float(told) if isinstance(told, (int, float)) and 0 < told < math.inf else _USUAL_FPS

    def _open(self) -> gym.Env:
        """Make the environment, and try it."""
        settings, name = self.settings, self.settings.name
        try:
            plain = make_env(settings)
            modes = list(plain.metadata.get("render_modes") or [])
            plain.close()
            if "rgb_array" not in modes:
                raise ConfigError(f"{name} cannot be filmed: it has no rgb_array among its render modes, {modes}")
            env = make_env(EnvSettings(settings.env, {**settings.kwargs, "render_mode": "rgb_array"}, "stepped"))
            try:
                env.reset(seed=0)
                self._picture(env)
            except BaseException:
                _try_to_close(env)
                raise
        except RacewayError:
            raise
        except Exception as error:  # of a library for drawing, which may raise anything
            raise ConfigError(f"{name} cannot render here: {type(error).__name__}: {error}{_advice(error)}") from error
        return env

    def shoot(
        self, acting: ActingPolicy, path: Path, num_episodes: int, *, seed: int, deterministic: bool,
        told: Callable[[int], None] = lambda num: None,
    ) -> None:  # fmt: skip
        """Play so many episodes and write what they look like; `told` is called with the number of pictures so far."""
        aside = path.with_name(f".{path.stem}.part{path.suffix}")
        pictures = self._pictures(acting, num_episodes, seed, deterministic)
        try:
            _write(aside, _counted(pictures, told), self.fps)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)

    def _pictures(self, acting: ActingPolicy, num: int, seed: int, deterministic: bool) -> Iterator[Array]:
        env, seed = self.env, seed_of(seed, Purpose.EVALUATION)
        draws = seed_of(seed, Purpose.ACTIONS, _SHARD)
        if env.has_wrapper_attr("set_task"):
            tasks = env.get_wrapper_attr("sample_tasks")(num, seed_of(seed, Purpose.TASKS, _SHARD))
        for episode in range(num):
            if env.has_wrapper_attr("set_task"):
                env.get_wrapper_attr("set_task")(tasks[episode])
            obs, _ = env.reset(seed=seed_of_episode(seed, _SHARD, 0, episode))
            acting.reset()
            first, total, over = True, 0.0, False
            yield self._picture(env)
            while not over:
                action = acting.act(obs, deterministic, seed=draws + episode if first else None)
                obs, reward, terminated, truncated, info = env.step(action)
                first, total, over = False, total + float(reward), terminated or truncated
                yield self._picture(env)
                if over and self._goes_on(info):
                    obs, _ = env.reset()
                    acting.reset()
                    over = False
            self.returns.append(float(info["episode"]["r"]) if "episode" in info else total)
        acting.reset()

    def _goes_on(self, info: dict[str, Any]) -> bool:
        """Whether the end was that of a life only, and the game goes on."""
        env = self.env
        return env.has_wrapper_attr("tells_scores") and "episode" not in info

    def _picture(self, env: gym.Env) -> Array:
        picture: Any = env.render()
        if (
            not isinstance(picture, np.ndarray)
            or picture.ndim != 3
            or picture.shape[2] != 3
            or picture.dtype != np.uint8
        ):
            shown = f"{picture.dtype}{picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
            raise ConfigError(f"{self.settings.name} rendered {shown}; a picture is uint8 of (height, width, 3)")
        return picture


def _counted(pictures: Iterable[Array], told: Callable[[int], None]) -> Iterator[Array]:
    for number, picture in enumerate(pictures, 1):
        told(number)
        yield picture


def _write(path: Path, pictures: Iterable[Array], fps: float) -> None:
    if path.suffix.lower() == ".gif":
        from PIL import Image

        images = (Image.fromarray(picture) for picture in pictures)
        next(images).save(path, "GIF", save_all=True, append_images=images, duration=round(1000 / fps), loop=0)
        return
    import imageio.v2

    # No scaling to multiples of 16: an even number of rows and columns is all that the codec needs.
    how: dict[str, Any] = {"codec": "libx264", "macro_block_size": 1, "quality": 8, "ffmpeg_log_level": "error"}
    writer: Any = imageio.v2.get_writer(path, "FFMPEG", mode="I", fps=fps, **how)
    with closing(writer):  # as a context it would not end its process after an error
        for picture in pictures:
            height, width = picture.shape[:2]
            writer.append_data(np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), "edge"))


def _try_to_close(env: gym.Env) -> None:
    try:
        env.close()
    except Exception:  # what could not be opened may fail to close
        pass


def _advice(error: BaseException) -> str:
    places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if not any(f"{os.sep}mujoco{os.sep}" in place for place in places):
        return ""
    return ". MuJoCo draws by OpenGL: set MUJOCO_GL to egl, osmesa, or, with a screen, glfw, whichever is installed"


@contextmanager
def _headless() -> Iterator[None]:
    """Have pygame and MuJoCo draw without a screen, unless somebody has said how they are to."""
    wanted = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        wanted["MUJOCO_GL"] = "egl"
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
