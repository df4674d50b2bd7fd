"""Gymnasium ids from the names that a user types."""

from __future__ import annotations

import importlib
import sys

import gymnasium as gym

from raceway.checks import unknown_name
from raceway.errors import ConfigError

ALIASES = {
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "mountaincar": "MountainCar-v0",
    "pendulum": "Pendulum-v1",
    "lunarlander": "LunarLander-v3",
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
    "cartpole-positions": "CartPolePositions-v1",
    "point": "PointGoals-v0",
    "bitflipping": "raceway/BitFlipping-v0",
    "reach": "raceway/Reach-v0",
    "linear-bandit": "raceway/LinearBandit-v0",
    "slates": "raceway/Slates-v0",
    "cheetah-direction": "HalfCheetahDirection-v0",
    "pong": "ALE/Pong-v5",
    "breakout": "ALE/Breakout-v5",
}


PETTINGZOO = "pettingzoo:"
"""Marks the name of an environment as one of PettingZoo's API."""


def is_multi_agent(env: object) -> bool:
    """Whether a name is that of an environment with several agents.

    >>> is_multi_agent("pettingzoo:mpe2.simple_spread_v3"), is_multi_agent("cartpole")
    (True, False)
    """
    return isinstance(env, str) and env.startswith(PETTINGZOO)


def resolve_env_id(name: str) -> str:
    """Return the Gymnasium id for a short name, an id, or `module:Id` whose module registers it.

    >>> resolve_env_id("cartpole"), resolve_env_id("CartPole")
    ('CartPole-v1', 'CartPole-v1')
    """
    if is_multi_agent(name):
        return name  # a module or function of PettingZoo's API, which is not registered
    name = ALIASES.get(name, name)
    module, _, rest = name.rpartition(":")
    if module:
        _import(module, name)
    elif rest.startswith("ALE/"):
        register_atari(name)
    if rest in gym.registry:
        return name
    versions = [spec for spec in gym.registry.values() if spec.id == f"{rest}-v{spec.version}"]
    if not versions:
        if module and hasattr(sys.modules[module], rest):
            raise ConfigError(
                f"{module} has {rest!r}, but registers no environment of that name. Add to {module}: "
                f'gymnasium.register("{rest}-v0", entry_point={rest}), and name it {module}:{rest}-v0.'
            )
        raise unknown_environment(name)
    newest = max(versions, key=lambda spec: spec.version or 0).id
    return f"{module}:{newest}" if module else newest


def unknown_environment(name: str) -> ConfigError:
    """Return the error for a name that is not registered, with the nearest names."""
    short = [id.partition("-v")[0] for id in gym.registry]
    message = str(unknown_name("environment", name.rpartition(":")[2], {*ALIASES, *gym.registry, *short}))
    return ConfigError(
        f"{message.partition(' Choose from')[0]} Give a short name ({', '.join(ALIASES)}), a Gymnasium id, or "
        "module:Id for an environment that your own module registers."
    )


def missing_extra(name: str, error: BaseException) -> ConfigError:
    """Return the error for an environment whose simulator is not installed."""
    text = f"{name} {type(error).__module__} {error}".lower()
    extra = next((extra for extra in ("mujoco", "box2d", "atari", "envpool") if extra in text), None)
    if extra is None and ("ale_py" in text or "ale/" in text):
        extra = "atari"
    advice = f"pip install 'raceway[{extra}]'" if extra else "install the package that the message names"
    return ConfigError(f"{name} needs a package that is not installed ({error}). To install it: {advice}")


def register_atari(name: str) -> None:
    """Register the Atari games, which Gymnasium does not do by itself."""
    try:
        import ale_py
    except ImportError as error:
        raise ConfigError(f"{name} needs the Arcade Learning Environment: pip install 'raceway[atari]'") from error
    gym.register_envs(ale_py)


def _import(module: str, name: str) -> None:
    if "" not in sys.path:
        sys.path.insert(0, "")  # the working directory, as `python -m` has it
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise ConfigError(
            f"environment {name!r}: there is no module {module!r} here ({error}). Run from its directory, or "
            "install it."
        ) from error
