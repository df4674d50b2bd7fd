"""Observations with the last action and reward: in every kind of vector, after resets, and beside an action mask."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from raceway.envs import EnvSettings, Slots, SteppedSlots, VectorSlots, make_slots
from raceway.envs.last_step import LastStepSlots
from raceway.errors import ConfigError, EnvironmentFailed
from raceway.rl import empty
from raceway.rl.last_step import ActionVectors, LastStep


class Countdown(gym.Env[Any, Any]):
    """Episodes of as many steps as their seed. The observation is the number left, and the reward minus twice it."""

    observation_space = spaces.Box(0, 100, (1,))
    action_space = spaces.Discrete(3, start=1)

    def __init__(self, masked: bool = False, fails_at: int | None = None) -> None:
        self.masked, self.fails_at = masked, fails_at

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.left = 2 if seed is None else seed
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.left == self.fails_at:
            raise RuntimeError("broken")
        self.left -= 1
        return self._obs(), -2.0 * self.left, self.left == 0, False, self._info()

    def _obs(self) -> Any:
        return np.array([self.left], np.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, 0, 1], np.int8)} if self.masked else {}


class Arrays:
    def __init__(self, slots: Slots) -> None:
        self.obs = empty(slots.observation_space, (slots.num,))
        self.reward, self.ended = np.zeros(slots.num, np.float32), np.zeros((2, slots.num), bool)

    def step(self, slots: Slots, actions: Any, active: list[int] | None = None) -> Any:
        active = list(range(slots.num)) if active is None else active
        return slots.step(np.asarray(actions), active, self.obs, self.reward, self.ended)

    def lists(self) -> tuple[Any, ...]:
        return tuple(self.obs[key].tolist() for key in ("observation", "last_action", "last_reward"))


def stepped(num: int, **settings: Any) -> Slots:
    return make_slots(EnvSettings(Countdown, settings, last_action_and_reward=True), num)


def test_they_follow_every_step_and_are_zeros_at_the_start_of_an_episode() -> None:
    slots = stepped(2)
    assert isinstance(slots, SteppedSlots)
    arrays = Arrays(slots)
    arrays.obs["last_action"][:] = arrays.obs["last_reward"][:] = 7  # of an episode before
    slots.reset([0, 1], [2, 5], arrays.obs)
    assert arrays.lists() == ([[2], [5]], [[0, 0, 0], [0, 0, 0]], [[0], [0]])
    arrays.step(slots, [1, 3])
    assert arrays.lists() == ([[1], [4]], [[1, 0, 0], [0, 0, 1]], [[-2], [-8]])
    arrays.step(slots, [2, 2])
    assert arrays.lists() == ([[0], [3]], [[0, 1, 0], [0, 1, 0]], [[0], [-6]])
    slots.reset([0], [9], arrays.obs)  # the other episode goes on
    assert arrays.lists() == ([[9], [3]], [[0, 0, 0], [0, 1, 0]], [[0], [-6]])
    arrays.step(slots, [1, 1], active=[1])
    assert arrays.lists() == ([[9], [2]], [[0, 0, 0], [1, 0, 0]], [[0], [-4]])


def test_where_an_environment_fails_those_before_it_have_stepped() -> None:
    envs = iter([Countdown(), Countdown(fails_at=5)])
    slots = make_slots(EnvSettings(lambda: next(envs), last_action_and_reward=True), 2)
    arrays = Arrays(slots)
    slots.reset([0, 1], [5, 5], arrays.obs)
    with pytest.raises(EnvironmentFailed, match="broken"):
        arrays.step(slots, [3, 3])
    assert [part[0] for part in arrays.lists()] == [[4], [0, 0, 1], [-8]]


def test_where_an_environment_cannot_be_reset_those_before_it_have_begun() -> None:
    class Broken(Countdown):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            raise RuntimeError("broken")

    envs = iter([Countdown(), Broken()])
    slots = make_slots(EnvSettings(lambda: next(envs), last_action_and_reward=True), 2)
    arrays = Arrays(slots)
    arrays.obs["last_action"][:] = arrays.obs["last_reward"][:] = 7  # of an episode before
    with pytest.raises(EnvironmentFailed, match="broken"):
        slots.reset([0, 1], [5, 5], arrays.obs)
    assert [part[0] for part in arrays.lists()] == [[5], [0, 0, 0], [0]]


MODES: dict[AutoresetMode, Callable[[int], Slots]] = {
    mode: lambda num, mode=mode: LastStepSlots(VectorSlots(SyncVectorEnv([Countdown] * num, autoreset_mode=mode)))
    for mode in AutoresetMode
}


@pytest.mark.parametrize("mode", MODES)
def test_vector_environments_in_every_autoreset_mode(mode: AutoresetMode) -> None:
    slots = MODES[mode](2)
    arrays = Arrays(slots)
    slots.reset([0, 1], [1, 4], arrays.obs)
    assert arrays.lists()[1:] == ([[0, 0, 0], [0, 0, 0]], [[0], [0]])
    arrays.step(slots, [1, 3])
    assert arrays.lists() == ([[0], [3]], [[1, 0, 0], [0, 0, 1]], [[0], [-6]])
    slots.reset([0], [7], arrays.obs)
    assert arrays.lists()[1:] == ([[0, 0, 0], [0, 0, 1]], [[0], [-6]])
    valid = arrays.step(slots, [2, 2])
    if mode is AutoresetMode.NEXT_STEP:  # the step was used up by the reset, and the episode begins only now
        assert valid.tolist() == [False, True]
        assert arrays.lists()[1:] == ([[0, 0, 0], [0, 1, 0]], [[0], [-4]])
    else:
        assert arrays.lists()[1:] == ([[0, 1, 0], [0, 1, 0]], [[arrays.reward[0]], [-4]])
    slots.close()


def test_a_native_vector_has_the_same_observations_as_environments_one_by_one() -> None:
    both = [make_slots(EnvSettings("cartpole", {}, kind, True), 3) for kind in ("native", "stepped")]
    assert both[0].observation_space == both[1].observation_space
    arrays = [Arrays(slots) for slots in both]
    for slots, array in zip(both, arrays, strict=True):
        slots.reset([0, 1, 2], [4, 5, 6], array.obs)
        for actions in ([0, 1, 1], [1, 1, 0]):
            array.step(slots, actions)
        slots.reset([1], [7], array.obs)
    for key in arrays[0].obs:
        np.testing.assert_allclose(arrays[0].obs[key], arrays[1].obs[key], rtol=1e-6)
    assert arrays[0].lists()[1:] == ([[0, 1], [0, 0], [1, 0]], [[1], [0], [1]])


def test_an_action_mask_stays_where_it_is() -> None:
    slots = stepped(1, masked=True)
    assert set(slots.observation_space) == {"observation", "action_mask", "last_action", "last_reward"}  # type: ignore[call-overload]
    arrays = Arrays(slots)
    slots.reset([0], [3], arrays.obs)
    arrays.step(slots, [3])
    assert arrays.obs["action_mask"].tolist() == [[1, 0, 1]]
    assert arrays.lists() == ([[2]], [[0, 0, 1]], [[-4]])


def test_a_dict_observation_is_extended_unless_it_has_such_an_entry() -> None:
    action, part = spaces.Discrete(2), spaces.Box(-1, 1, (2,))
    assert list(LastStep(spaces.Dict({"a": part}), action).space) == ["a", "last_action", "last_reward"]
    with pytest.raises(ConfigError, match="already has the entry 'last_reward'"):
        LastStep(spaces.Dict({"last_reward": part}), action)


@pytest.mark.parametrize(
    ("space", "action", "vector"),
    [
        (spaces.Discrete(3, start=-1), -1, [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [0, 1, 0, 0, 1]),
        (spaces.MultiDiscrete([[2], [2]]), [[0], [1]], [1, 0, 0, 1]),
        (spaces.Box(-1, 1, (2, 1)), [[0.5], [-1]], [0.5, -1]),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1]),
    ],
    ids=str,
)
def test_vectors_of_actions(space: spaces.Space, action: Any, vector: list[float]) -> None:
    vectors = ActionVectors(space)
    rows = vectors(np.array([action, action], space.dtype))
    assert rows.dtype == np.float32
    assert rows.tolist() == [vector, vector]
    assert vectors.size == len(vector)


def test_other_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="last_action_and_reward false"):
        ActionVectors(spaces.Tuple([spaces.Discrete(2)]))
