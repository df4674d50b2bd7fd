"""Environments from the names that a user types."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from raceway.envs import ALIASES, EnvSettings, make_env, make_slots, resolve_env_id
from raceway.errors import ConfigError

MODULE = """
import gymnasium as gym
import numpy as np

class Still(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}

gym.register("Still-v0", entry_point=Still)
gym.register("Still-v3", entry_point=Still)
gym.register("corner/Still-very-v1", entry_point=Still)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module that registers environments; removed again after the test."""
    registered = dict(gym.registry)
    (tmp_path / "still_life.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield "still_life"
    sys.modules.pop("still_life", None)
    gym.registry.clear()
    gym.registry.update(registered)


@pytest.fixture
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of `sys.path` that a test may extend."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def without(monkeypatch: pytest.MonkeyPatch, name: str, users: str) -> None:
    """Hide a package, and forget the modules that import it, so that they are imported again."""
    monkeypatch.setitem(sys.modules, name, None)
    for loaded in [loaded for loaded in sys.modules if loaded == users or loaded.startswith(users + ".")]:
        parent, _, child = loaded.rpartition(".")
        monkeypatch.setattr(sys.modules[parent], child, sys.modules[loaded], raising=False)
        monkeypatch.delitem(sys.modules, loaded)


@pytest.mark.parametrize("short", [name for name, id in ALIASES.items() if not id.startswith("ALE/")])
def test_a_short_name_resolves_to_a_registered_id(short: str) -> None:
    assert resolve_env_id(short) == ALIASES[short]
    assert ALIASES[short] in gym.registry


def test_an_id_resolves_to_itself() -> None:
    assert resolve_env_id("Acrobot-v1") == "Acrobot-v1"


@pytest.mark.parametrize(("name", "id"), [("CartPole", "CartPole-v1"), ("FrozenLake8x8", "FrozenLake8x8-v1")])
def test_an_id_without_a_version_means_the_newest(name: str, id: str) -> None:
    assert resolve_env_id(name) == id
    make_slots(EnvSettings(name), 2).close()  # Gymnasium itself would warn


def test_a_module_of_the_user_is_imported(module: str) -> None:
    assert resolve_env_id(f"{module}:Still-v3") == "still_life:Still-v3"
    assert module in sys.modules
    slots = make_slots(EnvSettings(f"{module}:Still-v3"), 2)
    assert slots.num == 2
    slots.close()


def test_the_newest_version_of_a_users_module_keeps_the_module(module: str) -> None:
    """A worker in another process has to import the module."""
    assert resolve_env_id(f"{module}:Still") == "still_life:Still-v3"
    assert resolve_env_id(f"{module}:corner/Still-very") == "still_life:corner/Still-very-v1"
    make_env(EnvSettings(f"{module}:Still")).close()


def test_a_name_is_cut_only_before_its_version(module: str) -> None:
    resolve_env_id(f"{module}:Still-v0")
    with pytest.raises(ConfigError, match="unknown environment 'corner/Still'"):
        resolve_env_id("corner/Still")


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("cartpol", "cartpole"),
        ("CartPoel-v1", "CartPole-v1"),
        ("Acrobat", "Acrobot"),
        ("LunarLandr-v3", "LunarLander-v3"),
        ("CartPole-v1 ", "CartPole-v1"),
    ],
)
def test_the_error_for_an_unknown_name_has_the_nearest(name: str, guess: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve_env_id(name)
    message = str(raised.value)
    assert f"unknown environment {name!r}. Did you mean {guess!r}?" in message
    assert "module:Id" in message
    assert "cartpole, acrobot" in message


def test_the_error_for_a_name_like_no_other_lists_the_forms() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown environment 'zzzzzzzzzz'\. Give a short name \(cartpole, .*module:Id"
    ):
        resolve_env_id("zzzzzzzzzz")


@pytest.mark.parametrize("name", ["", "a b", "CartPole-v1-v1", "a/b/c", "-v1"])
def test_odd_names_are_unknown_environments(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown environment"):
        resolve_env_id(name)


def test_a_module_that_does_not_register_the_id(module: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown environment 'Stil-v0'\. Did you mean 'Still-v0'"):
        resolve_env_id(f"{module}:Stil-v0")


def test_a_class_that_is_not_registered() -> None:
    message = r"tests.flaky_envs has 'Flaky'.* Add .*gymnasium.register\(\"Flaky-v0\", entry_point=Flaky\)"
    with pytest.raises(ConfigError, match=message):
        resolve_env_id("tests.flaky_envs:Flaky")


@pytest.mark.usefixtures("own_path")
def test_an_unknown_module() -> None:
    with pytest.raises(ConfigError, match=r"'no_such_place:Id-v0': there is no module 'no_such_place' here"):
        resolve_env_id("no_such_place:Id-v0")
    with pytest.raises(ConfigError, match=r"there is no module 'json\.nothing' here"):
        resolve_env_id("json.nothing:Id-v0")


@pytest.mark.usefixtures("own_path")
def test_a_module_in_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in (str(tmp_path), "")])
    monkeypatch.chdir(tmp_path)
    assert resolve_env_id(f"{module}:Still-v0") == "still_life:Still-v0"


@pytest.mark.usefixtures("own_path")
def test_a_missing_import_of_the_module_is_not_mistaken_for_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        resolve_env_id("lacking:Id-v0")


def test_without_mujoco_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "mujoco", "gymnasium.envs.mujoco")
    with pytest.raises(ConfigError, match=r"HalfCheetah-v5 needs .*pip install 'raceway\[mujoco\]'"):
        make_slots(EnvSettings("halfcheetah"), 1)


def test_without_box2d_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "Box2D", "gymnasium.envs.box2d")
    with pytest.raises(ConfigError, match=r"LunarLander-v3 needs .*pip install 'raceway\[box2d\]'"):
        make_slots(EnvSettings("lunarlander"), 1)


@pytest.mark.parametrize("name", ["pong", "ALE/Breakout-v5"])
def test_without_the_ale_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"ALE/(Pong|Breakout)-v5 needs .*pip install 'raceway\[atari\]'"):
        EnvSettings(name).resolved()


def test_with_the_ale_its_games_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package registers them when it is imported; here, a stand-in for it."""
    registered = dict(gym.registry)
    monkeypatch.setitem(sys.modules, "ale_py", type(sys)("ale_py"))
    monkeypatch.setitem(gym.registry, "ALE/Pong-v5", gym.spec("CartPole-v1"))
    assert resolve_env_id("pong") == "ALE/Pong-v5"
    with pytest.raises(ConfigError, match="Did you mean 'ALE/Pong-v5'"):
        resolve_env_id("ALE/Pnog-v5")
    assert {*gym.registry} == {*registered, "ALE/Pong-v5"}


def test_without_envpool_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError, match=r"--vector envpool needs EnvPool: pip install 'raceway\[envpool\]'"):
        make_slots(EnvSettings("cartpole", vector="envpool"), 2)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("No module named 'mujoco'", "pip install 'raceway[mujoco]'"),
        ("Box2D is not installed", "pip install 'raceway[box2d]'"),
        ("No module named 'ale_py'", "pip install 'raceway[atari]'"),
        ("No module named 'whale'", "install the package that the message names"),
        ("No module named 'pygame'", "install the package that the message names"),
    ],
)
def test_a_function_that_lacks_a_package(message: str, advice: str) -> None:
    def arena(**_: Any) -> gym.Env:
        raise ImportError(message)

    with pytest.raises(ConfigError) as raised:
        make_env(EnvSettings(arena))
    assert str(raised.value) == f"arena needs a package that is not installed ({message}). To install it: {advice}"
