"""Making environments from settings."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from raceway.agents import make_policy
from raceway.envs import CartPoleSlots, EnvPoolSlots, EnvSettings, SteppedSlots, VectorSlots, make_env, make_slots
from raceway.errors import ConfigError
from tests.envs.toy_envs import Samples

TAXI = next(id for id in gym.registry if id.startswith("Taxi-v"))
BOX = spaces.Box(-1, 1, (2,))


class Masked(Samples):
    """Has the mask of allowed actions in its info."""

    def __init__(self, space: spaces.Space = BOX, at_step: bool = True) -> None:
        super().__init__(space)
        self.at_step = at_step

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**settings)[0], {"action_mask": np.array([1, 0, 1], np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        mask = np.array([self.now % 2, 1, 0], np.int8)
        return *super().step(action)[:4], {"action_mask": mask} if self.at_step else {}  # type: ignore[return-value]


class FailsOnReset(Samples):
    """Fails on reset."""

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        raise RuntimeError("not now")


def register(monkeypatch: pytest.MonkeyPatch, vector: Callable[..., Any]) -> None:
    """Register Own-v0, with a native vector environment, for one test."""
    spec = EnvSpec("Own-v0", entry_point=lambda: Samples(BOX), vector_entry_point=vector)
    monkeypatch.setitem(gym.registry, "Own-v0", spec)


def test_the_name_of_an_environment() -> None:
    assert EnvSettings("cartpole").name == "cartpole"
    assert EnvSettings("cartpole").resolved().name == "CartPole-v1"
    assert EnvSettings(Samples).name == "Samples"
    assert "Samples" in EnvSettings(partial(Samples, BOX)).name


def test_kwargs_are_passed_on() -> None:
    env = make_env(EnvSettings("cartpole", {"max_episode_steps": 7}))
    assert env.spec is not None
    assert env.spec.max_episode_steps == 7
    custom = make_env(EnvSettings(Samples, {"space": BOX, "length": 9}))
    assert custom.unwrapped.length == 9  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("env", "vector"), [("cartpole", "auto"), ("cartpole", "stepped"), ("acrobot", "auto"), (Samples, "auto")]
)
def test_unknown_kwargs_are_refused(env: Any, vector: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be created with \{'gravitas': 3\}: .*gravitas"):
        make_slots(EnvSettings(env, {"gravitas": 3}, vector), 1)


def test_an_environment_that_gymnasium_cannot_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gym.registry, "Hollow-v0", EnvSpec("Hollow-v0"))
    with pytest.raises(ConfigError, match=r"Hollow-v0 cannot be created: .*entry_point is not specified"):
        make_slots(EnvSettings("Hollow-v0"), 1)


@pytest.mark.parametrize("result", [None, 3, Samples, "CartPole-v1"])
def test_a_function_that_returns_no_environment(result: Any) -> None:
    def arena() -> Any:
        return result

    with pytest.raises(ConfigError, match=r"arena returned .*, which is not a gymnasium\.Env"):
        make_env(EnvSettings(arena))


def test_an_error_of_the_users_function_is_passed_through() -> None:
    def arena() -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        make_env(EnvSettings(arena))


def test_an_unknown_vector_mode() -> None:
    with pytest.raises(ConfigError, match=r"unknown vector mode 'nativ'. Did you mean 'native'"):
        make_slots(EnvSettings("cartpole", vector="nativ"), 1)


@pytest.mark.parametrize(
    ("env", "vector", "kind"),
    [
        ("cartpole", "auto", CartPoleSlots),
        ("cartpole", "native", CartPoleSlots),
        ("cartpole", "stepped", SteppedSlots),
        ("acrobot", "auto", SteppedSlots),
        (partial(Samples, BOX), "auto", SteppedSlots),
    ],
)
def test_the_class_of_the_slots(env: Any, vector: str, kind: type) -> None:
    slots = make_slots(EnvSettings(env, vector=vector), 3)
    assert type(slots) is kind
    assert slots.num == 3
    slots.close()


def test_a_registered_vector_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def vector(num_envs: int) -> Any:
        return SyncVectorEnv([lambda: Samples(BOX)] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    register(monkeypatch, vector)
    slots = make_slots(EnvSettings("Own-v0"), 2)
    assert isinstance(slots, VectorSlots)
    assert slots.mode is AutoresetMode.DISABLED


@pytest.mark.parametrize("env", ["acrobot", Samples])
def test_no_native_vector_environment(env: Any) -> None:
    with pytest.raises(ConfigError, match=r"no native vector environment. Use --vector auto"):
        make_slots(EnvSettings(env, vector="native"), 1)


def test_a_vector_without_its_package_falls_back_unless_it_was_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    def vector(num_envs: int) -> Any:
        raise ImportError("No module named 'jax'")

    register(monkeypatch, vector)
    assert isinstance(make_slots(EnvSettings("Own-v0"), 2), SteppedSlots)
    with pytest.raises(ConfigError, match=r"Own-v0 needs a package that is not installed .*jax"):
        make_slots(EnvSettings("Own-v0", vector="native"), 2)


def test_the_mask_of_taxi_becomes_part_of_the_observation() -> None:
    slots = make_slots(EnvSettings(TAXI), 2)
    plain = gym.make(TAXI)
    assert slots.observation_space["observation"] == plain.observation_space  # type: ignore[index]
    obs = {"observation": np.zeros(2, np.int64), "action_mask": np.zeros((2, 6), np.int8)}
    slots.reset([0, 1], [3, 4], obs)
    for slot, seed in enumerate([3, 4]):
        first, info = plain.reset(seed=seed)
        assert obs["observation"][slot] == first
        np.testing.assert_array_equal(obs["action_mask"][slot], info["action_mask"])
        assert 0 < obs["action_mask"][slot].sum() < 6
    allowed = obs["action_mask"].argmax(1)
    slots.step(allowed, [0, 1], obs, np.zeros(2, np.float32), np.zeros((2, 2), bool))
    next_obs, _, _, _, info = plain.step(int(allowed[1]))
    assert obs["observation"][1] == next_obs
    np.testing.assert_array_equal(obs["action_mask"][1], info["action_mask"])
    slots.close()


def test_a_policy_takes_no_action_that_taxi_forbids() -> None:
    slots = make_slots(EnvSettings(TAXI), 5)
    policy = make_policy(slots.observation_space, slots.action_space, hidden=(8,), seed=0)
    obs = {"observation": np.zeros(5, np.int64), "action_mask": np.zeros((5, 6), np.int8)}
    slots.reset(range(5), range(5), obs)
    random, forbidden = np.random.default_rng(0), 0
    for _ in range(40):
        actions, _ = policy.act(obs, {}, random)
        assert obs["action_mask"][range(5), actions].all()
        forbidden += int((obs["action_mask"] == 0).sum())
        slots.step(actions, range(5), obs, np.zeros(5, np.float32), np.zeros((2, 5), bool))
    assert forbidden > 40
    slots.close()


def test_a_mask_beside_a_dict_observation() -> None:
    """The network then sees the parts of the Dict."""
    inner = spaces.Dict({"x": BOX, "y": spaces.Discrete(3)})
    env = make_env(EnvSettings(lambda: Masked(inner)))
    policy = make_policy(env.observation_space, env.action_space, hidden=(4,), seed=0)
    first, _ = env.reset(seed=0)
    obs = {
        "observation": {"x": first["observation"]["x"][None], "y": np.array([first["observation"]["y"]])},
        "action_mask": first["action_mask"][None],
    }
    sampled = {int(policy.act(obs, {}, np.random.default_rng(seed))[0][0]) for seed in range(30)}
    assert sampled == {0, 2}


def test_masks_change_with_every_step() -> None:
    env = make_env(EnvSettings(Masked))
    assert env.reset(seed=0)[0]["action_mask"].tolist() == [1, 0, 1]
    assert env.step(0)[0]["action_mask"].tolist() == [0, 1, 0]
    assert env.step(0)[0]["action_mask"].tolist() == [1, 1, 0]


def test_without_a_mask_nothing_is_wrapped() -> None:
    env = make_env(EnvSettings(partial(Samples, BOX)))
    assert type(env) is Samples
    continuous = make_env(EnvSettings(partial(Samples, BOX, BOX)))
    assert continuous.observations == []  # type: ignore[attr-defined]  # no discrete actions, so it is not reset to look for a mask
    own = spaces.Dict({"observation": BOX, "action_mask": spaces.MultiBinary(3)})
    assert type(make_env(EnvSettings(partial(Samples, own)))) is Samples


def test_an_environment_that_fails_on_reset_can_be_made() -> None:
    """The collector reports the error, with the slot."""
    assert type(make_env(EnvSettings(partial(FailsOnReset, BOX)))) is FailsOnReset


class Pool:
    """A stand-in for EnvPool: a module, and the environment that it makes, which answers in reverse order."""

    observation_space, action_space = spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3)

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.sent: list[Any] = []
        self.closed = False

    def list_all_envs(self) -> list[str]:
        return ["CartPole-v1", "Pong-v5"]

    def make(self, name: str, **settings: Any) -> "Pool":
        self.arguments = {"name": name, **settings}
        return self

    def reset(self, slots: np.ndarray) -> tuple[Any, dict[str, Any]]:
        return np.stack([slots, slots * 0], 1), {}

    def step(self, actions: np.ndarray, slots: np.ndarray) -> tuple[Any, ...]:
        self.sent.append((actions, slots))
        order = slots[::-1]
        return np.stack([order, order + 10], 1), order * 2.0, order == 1, order == 2, {"env_id": order}

    def close(self) -> None:
        self.closed = True


def test_envpool_gets_the_seed_and_may_answer_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    monkeypatch.setitem(sys.modules, "envpool", pool)
    slots = make_slots(EnvSettings("cartpole", {"x": 1}, vector="envpool"), 3, seed=42)
    assert isinstance(slots, EnvPoolSlots)
    expected = {"name": "CartPole-v1", "env_type": "gymnasium", "num_envs": 3, "seed": 42, "num_threads": 1, "x": 1}
    assert pool.arguments == expected
    obs, reward, ended = np.full((3, 2), -1.0), np.full(3, -1.0), np.zeros((2, 3), bool)
    slots.reset([2, 0], [5, 6], obs)
    np.testing.assert_array_equal(obs, [[0, 0], [-1, -1], [2, 0]])
    slots.step(np.array([7, 8, 9]), [1, 2], obs, reward, ended)
    ((actions, slot_ids),) = pool.sent
    assert (actions.tolist(), slot_ids.tolist()) == ([8, 9], [1, 2])
    assert (actions.dtype, slot_ids.dtype) == (np.int32, np.int32)
    np.testing.assert_array_equal(obs, [[0, 0], [1, 11], [2, 12]])
    np.testing.assert_array_equal(reward, [-1, 2, 4])
    np.testing.assert_array_equal(ended, [[False, True, False], [False, False, True]])
    slots.close()
    assert pool.closed


def test_an_environment_that_envpool_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", Pool())
    with pytest.raises(ConfigError, match=r"EnvPool has no 'Acrobot-v1'. Use --vector auto"):
        make_slots(EnvSettings("acrobot", vector="envpool"), 1)


def test_an_environment_object_is_an_error() -> None:
    with pytest.raises(ConfigError, match="Pass its class, or a function that creates one"):
        make_env(EnvSettings(gym.make("CartPole-v1")))  # type: ignore[arg-type]
