"""Making environments from what a user says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from raceway.checks import check_choice
from raceway.envs.atari import has_fire, is_atari, make_atari, split
from raceway.envs.names import find, missing_extra
from raceway.envs.slots import MaskFromInfo, Slots, SteppedSlots
from raceway.envs.vector import CartPoleSlots, EnvPoolAtariSlots, EnvPoolSlots, VectorSlots
from raceway.errors import ConfigError, RacewayError

_log = logging.getLogger(__name__)

VECTORS = ("auto", "native", "stepped", "envpool")


@dataclass(frozen=True)
class EnvSettings:
    """Which environment, how it is made, and how many are stepped together."""

    env: str | Callable[..., gym.Env]
    """A short name, a Gymnasium id, `module:Id`, or a function that makes one."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    vector: str = "auto"
    """`native` for the environment's own vector, `stepped` for one after the other, `envpool`; `auto` is the first of
    the first two that there is."""

    @property
    def name(self) -> str:
        """The environment's id, or the name of the function that makes it."""
        return self.env if isinstance(self.env, str) else getattr(self.env, "__name__", repr(self.env))

    def checked(self) -> EnvSettings:
        """Return the same with the name as Gymnasium knows it. Raise ConfigError if there is no such environment."""
        check_choice("way to step environments", self.vector, VECTORS)
        return EnvSettings(find(self.env) if isinstance(self.env, str) else self.env, self.kwargs, self.vector)


def make_env(settings: EnvSettings) -> gym.Env:
    """Make one environment."""
    try:
        if isinstance(settings.env, str):
            name = find(settings.env)
            with _quiet_models(name):
                # What the checker would find, the collector tells with the place.
                if is_atari(name):
                    env = make_atari(name, settings.kwargs)
                else:
                    env = gym.make(name, disable_env_checker=True, **settings.kwargs)
        else:
            env = settings.env(**settings.kwargs)
    except RacewayError:
        raise
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise missing_extra(settings.name, error) from error
    except TypeError as error:
        raise ConfigError(f"{settings.name} cannot be made with {dict(settings.kwargs)}: {error}") from error
    except gym.error.Error as error:
        raise ConfigError(f"{settings.name} cannot be made: {error}") from error
    if not isinstance(env, gym.Env):
        raise ConfigError(f"{settings.name} made {env!r}, which is no gymnasium.Env")
    return _masked(env)


@contextmanager
def _quiet_models(name: str) -> Iterator[None]:
    """Log what MuJoCo says of the model files, which are Gymnasium's, instead of printing it for every environment."""
    if "mujoco" not in str(gym.spec(name.rpartition(":")[2]).entry_point):
        yield
        return
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_log.info)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def make_slots(settings: EnvSettings, num: int, seed: int = 0) -> Slots:
    """Make environments that step together. Only EnvPool's take the seed; others are told one for every episode."""
    settings = settings.checked()
    if settings.vector == "envpool":
        return _envpool(settings, num, seed)
    if settings.vector == "native" and not isinstance(settings.env, str):
        raise ConfigError(f"{settings.name} is a function, and has no vector of its own. Use --vector auto.")
    if settings.vector != "stepped" and isinstance(settings.env, str):
        spec = gym.spec(settings.env.rpartition(":")[2])
        if is_atari(settings.env):
            # Its vector is no faster than this, and begins a new game for every life that it is told to reset.
            if settings.vector == "native":
                raise ConfigError(f"the vector of {settings.name} is not used. Use --vector auto.")
        elif spec.vector_entry_point is not None:
            vector = _native(settings, num)
            if vector is not None:
                return vector
        elif settings.vector == "native":
            raise ConfigError(f"{settings.name} has no vector of its own. Use --vector auto.")
    return SteppedSlots(lambda: make_env(settings), num)


def _native(settings: EnvSettings, num: int) -> Slots | None:
    assert isinstance(settings.env, str)
    mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
    try:
        env = gym.make_vec(settings.env, num_envs=num, vectorization_mode=mode, **settings.kwargs)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        if settings.vector == "native":
            raise missing_extra(settings.name, error) from error
        return None
    except TypeError as error:
        raise ConfigError(f"{settings.name} cannot be made with {dict(settings.kwargs)}: {error}") from error
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    return CartPoleSlots(env) if type(env) is CartPoleVectorEnv else VectorSlots(env)


def _envpool(settings: EnvSettings, num: int, seed: int) -> Slots:
    try:
        import envpool
    except ImportError as error:
        raise ConfigError("--vector envpool needs EnvPool: pip install 'raceway[envpool]'") from error
    name = settings.name.removeprefix("ALE/")
    if name not in envpool.list_all_envs():
        raise ConfigError(f"EnvPool has no {name!r}. Use --vector auto.")
    if not is_atari(settings.name):
        env = envpool.make(name, env_type="gymnasium", num_envs=num, seed=seed, num_threads=1, **settings.kwargs)
        return EnvPoolSlots(env, num)
    shown, rest = split(settings.name, settings.kwargs)
    if shown is None:
        raise ConfigError(f"{settings.name} as it is, with preprocess=False, can only be had with --vector auto.")
    kwargs = {**shown.for_envpool(), **rest}
    env = envpool.make(name, env_type="gymnasium", num_envs=num, seed=seed, num_threads=1, **kwargs)
    fires = shown.fire_on_reset and has_fire(settings.name, bool(rest.get("full_action_space")))
    return EnvPoolAtariSlots(env, num, ends_by_life=shown.terminal_on_life_loss, fires=fires)


def _masked(env: gym.Env) -> gym.Env:
    """Return the environment with its mask in the observation, if it tells one with its first."""
    if not isinstance(env.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
        return env
    if isinstance(env.observation_space, spaces.Dict) and "action_mask" in env.observation_space.spaces:
        return env
    try:
        _, info = env.reset(seed=0)
    except Exception:  # it will be told where and when it happens in a run
        return env
    return MaskFromInfo(env, len(info["action_mask"])) if "action_mask" in info else env
