"""Make environments from settings."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from raceway.checks import check_choice
from raceway.envs.atari import has_fire, is_atari, make_atari, split_kwargs
from raceway.envs.env_vector import MaskFromInfo, Slots, SteppedSlots
from raceway.envs.last_step import LastStepSlots, SteppedLastStepSlots
from raceway.envs.names import missing_extra, resolve_env_id
from raceway.envs.native_vectors import CartPoleSlots, EnvPoolAtariSlots, EnvPoolSlots, VectorSlots
from raceway.errors import INTERRUPTS, ConfigError, RacewayError

_log = logging.getLogger(__name__)

_FASTER: dict[Any, str] = {"gymnasium.envs.box2d.car_racing:CarRacing": "raceway.envs.car_racing:CarRacing"}
"""Faster implementations of the same environments, by the entry points of these."""

VECTOR_MODES = ("auto", "native", "stepped", "envpool")


@dataclass(frozen=True)
class EnvSettings:
    """Which environment to make, with which arguments, and how a vector of them is stepped."""

    env: str | Callable[..., gym.Env]
    """A short name, a Gymnasium id, `module:Id`, or a function that returns an environment."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    vector: str = "auto"
    """`native` for the environment's own vector environment, `stepped` for one environment after the other, `envpool`;
    `auto` is `native` where there is one, else `stepped`."""
    last_action_and_reward: bool = False
    """Whether observations of a vector of them also have the last action and its reward; see `rl.last_step`."""

    @property
    def name(self) -> str:
        """The environment's id, or the name of the function that makes it."""
        return self.env if isinstance(self.env, str) else getattr(self.env, "__name__", repr(self.env))

    def resolved(self) -> EnvSettings:
        """Return the same settings with the full Gymnasium id. Raise ConfigError if there is no such environment."""
        check_choice("vector mode", self.vector, VECTOR_MODES)
        return dataclasses.replace(self, env=resolve_env_id(self.env)) if isinstance(self.env, str) else self


def make_env(settings: EnvSettings) -> gym.Env:
    """Make one environment. Its action mask, if it has one, is part of the observation."""
    try:
        if isinstance(settings.env, str):
            name = resolve_env_id(settings.env)
            with _log_mujoco_warnings(name):
                # No environment checker: the collector checks too, and reports where the error is.
                if is_atari(name):
                    env = make_atari(name, settings.kwargs)
                else:
                    env = gym.make(_faster_spec(name), disable_env_checker=True, **settings.kwargs)
        elif isinstance(settings.env, gym.Env):
            raise ConfigError(
                f"env is the environment {settings.env}. Pass its class, or a function that creates one: every worker "
                "needs its own."
            )
        else:
            env = settings.env(**settings.kwargs)
    except RacewayError:
        raise
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise missing_extra(settings.name, error) from error
    except TypeError as error:
        raise ConfigError(f"{settings.name} cannot be created with {dict(settings.kwargs)}: {error}") from error
    except gym.error.Error as error:
        raise ConfigError(f"{settings.name} cannot be created: {error}") from error
    if not isinstance(env, gym.Env):
        raise ConfigError(f"{settings.name} returned {env!r}, which is not a gymnasium.Env")
    return _wrap_action_mask(env)


def _faster_spec(name: str) -> str | EnvSpec:
    """Return the id of an environment, or the spec of a faster implementation of the same environment."""
    spec = gym.spec(name.rpartition(":")[2])
    if spec.entry_point not in _FASTER:
        return name
    spec = copy.deepcopy(spec)
    spec.entry_point = _FASTER[spec.entry_point]
    return spec


@contextmanager
def _log_mujoco_warnings(name: str) -> Iterator[None]:
    """Log MuJoCo's warnings about Gymnasium's model files, which it would print for every environment."""
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
    """Make a vector of environments. Only EnvPool uses this seed; the others get one for every episode."""
    settings = settings.resolved()
    vector = _make_vector(settings, num, seed)
    if vector is not None:
        return LastStepSlots(vector) if settings.last_action_and_reward else vector
    stepped = SteppedLastStepSlots if settings.last_action_and_reward else SteppedSlots
    return stepped(lambda: make_env(settings), num)


def _make_vector(settings: EnvSettings, num: int, seed: int) -> Slots | None:
    """Make a vector environment, or return None if the environments are stepped one after the other."""
    if settings.vector == "envpool":
        return _make_envpool(settings, num, seed)
    if settings.vector == "native" and not isinstance(settings.env, str):
        raise ConfigError(f"{settings.name} is a function, which has no native vector environment. Use --vector auto.")
    if settings.vector != "stepped" and isinstance(settings.env, str):
        spec = gym.spec(settings.env.rpartition(":")[2])
        if is_atari(settings.env):
            # Its vector environment is no faster, and would start a new game after every life.
            if settings.vector == "native":
                raise ConfigError(
                    f"the native vector environment of {settings.name} is not supported. Use --vector auto."
                )
        elif spec.vector_entry_point is not None:
            return _make_native(settings, num)
        elif settings.vector == "native":
            raise ConfigError(f"{settings.name} has no native vector environment. Use --vector auto.")
    return None


def _make_native(settings: EnvSettings, num: int) -> Slots | None:
    assert isinstance(settings.env, str)
    mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
    try:
        env = gym.make_vec(settings.env, num_envs=num, vectorization_mode=mode, **settings.kwargs)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        if settings.vector == "native":
            raise missing_extra(settings.name, error) from error
        return None
    except TypeError as error:
        raise ConfigError(f"{settings.name} cannot be created with {dict(settings.kwargs)}: {error}") from error
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    return CartPoleSlots(env) if type(env) is CartPoleVectorEnv else VectorSlots(env)


def _make_envpool(settings: EnvSettings, num: int, seed: int) -> Slots:
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
    atari, rest = split_kwargs(settings.name, settings.kwargs)
    if atari is None:
        raise ConfigError(f"{settings.name} with preprocess=False is not available in EnvPool. Use --vector auto.")
    kwargs = {**atari.for_envpool(), **rest}
    env = envpool.make(name, env_type="gymnasium", num_envs=num, seed=seed, num_threads=1, **kwargs)
    fires = atari.fire_on_reset and has_fire(settings.name, bool(rest.get("full_action_space")))
    return EnvPoolAtariSlots(env, num, terminal_on_life_loss=atari.terminal_on_life_loss, fire_on_reset=fires)


def _wrap_action_mask(env: gym.Env) -> gym.Env:
    """Move the action mask into the observation, if the info of the first reset has one."""
    if not isinstance(env.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
        return env
    if isinstance(env.observation_space, spaces.Dict) and "action_mask" in env.observation_space.spaces:
        return env
    try:
        _, info = env.reset(seed=0)
    except INTERRUPTS:
        raise
    except Exception:  # it will be reported with its context when it happens in a run
        return env
    return MaskFromInfo(env, len(info["action_mask"])) if "action_mask" in info else env
