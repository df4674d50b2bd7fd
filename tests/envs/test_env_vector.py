"""Vectors of environments: every observation reaches its slot, in every space and every autoreset mode."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from raceway.envs import CartPoleSlots, EnvSettings, Slots, SteppedSlots, VectorSlots, make_slots
from raceway.errors import EnvironmentFailed
from raceway.rl import empty, row_of
from tests.envs.toy_envs import SPACES, Samples, as_tree, assert_same

BOX = spaces.Box(-1, 1, (2,))


class Arrays:
    """The arrays that slots write to."""

    def __init__(self, slots: Slots) -> None:
        self.obs = empty(slots.observation_space, (slots.num,))
        self.reward, self.ended = np.full(slots.num, -1, np.float32), np.zeros((2, slots.num), bool)

    def step(self, slots: Slots, actions: Any, active: list[int] | None = None) -> Any:
        active = list(range(slots.num)) if active is None else active
        return slots.step(np.asarray(actions), active, self.obs, self.reward, self.ended)


def stepped(makers: list[Callable[[], gym.Env]]) -> SteppedSlots:
    queue = iter(makers)
    return SteppedSlots(lambda: next(queue)(), len(makers))


@pytest.mark.parametrize("name", SPACES)
def test_observations_of_every_space(name: str) -> None:
    slots = SteppedSlots(lambda: Samples(SPACES[name]), 3)
    arrays = Arrays(slots)
    slots.reset([0, 1, 2], [5, 6, 7], arrays.obs)
    envs: list[Any] = slots.envs
    for slot, env in enumerate(envs):
        assert_same(row_of(arrays.obs, slot), as_tree(env.observations[-1]))
    arrays.step(slots, [0, 1, 2])
    for slot, env in enumerate(envs):
        assert len(env.observations) == 2
        assert_same(row_of(arrays.obs, slot), as_tree(env.observations[-1]))
    np.testing.assert_array_equal(arrays.reward, [1, 1, 1])


def test_only_the_named_slots_are_reset_or_stepped() -> None:
    slots = SteppedSlots(lambda: Samples(BOX), 3)
    arrays = Arrays(slots)
    slots.reset([2, 0], [5, 6], arrays.obs)
    assert [len(env.observations) for env in slots.envs] == [1, 0, 1]  # type: ignore[attr-defined]
    assert not arrays.obs[1].any()
    arrays.step(slots, [0, 0, 0], active=[2])
    assert [len(env.observations) for env in slots.envs] == [1, 0, 2]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(arrays.reward, [-1, -1, 1])


def test_seeds_go_to_their_slots() -> None:
    first, second = (SteppedSlots(lambda: Samples(BOX), 2) for _ in range(2))
    first_arrays, second_arrays = Arrays(first), Arrays(second)
    first.reset([0, 1], [5, 6], first_arrays.obs)
    second.reset([1, 0], [5, 6], second_arrays.obs)
    np.testing.assert_array_equal(first_arrays.obs, second_arrays.obs[::-1])
    assert (first_arrays.obs[0] != first_arrays.obs[1]).all()


@pytest.mark.parametrize(
    ("space", "actions", "kind"),
    [
        (spaces.Discrete(3), [2, 0], int),
        (spaces.MultiDiscrete([3, 2]), [[2, 1], [0, 0]], np.ndarray),
        (spaces.Box(-1, 1, (1,)), [[0.5], [-0.5]], np.ndarray),
    ],
)
def test_actions_arrive_in_the_type_that_environments_take(space: spaces.Space, actions: Any, kind: type) -> None:
    slots = SteppedSlots(lambda: Samples(BOX, space), 2)
    arrays = Arrays(slots)
    slots.reset([0, 1], [0, 1], arrays.obs)
    arrays.step(slots, actions)
    for env, action in zip(slots.envs, actions, strict=True):
        (received,) = env.actions  # type: ignore[attr-defined]
        assert type(received) is kind
        np.testing.assert_array_equal(received, action)


def test_an_observation_may_be_a_list() -> None:
    class Lists(Samples):
        def _next_obs(self) -> Any:
            return [float(self.now), 2.0]

    slots = SteppedSlots(lambda: Lists(BOX), 1)
    arrays = Arrays(slots)
    slots.reset([0], [0], arrays.obs)
    arrays.step(slots, [0])
    np.testing.assert_array_equal(arrays.obs, [[1, 2]])


def test_terminated_and_truncated_are_reported() -> None:
    slots = stepped([lambda: Samples(BOX, length=1), lambda: Samples(BOX, length=2)])
    arrays = Arrays(slots)
    slots.reset([0, 1], [0, 1], arrays.obs)
    arrays.step(slots, [0, 0])
    np.testing.assert_array_equal(arrays.ended, [[False, False], [True, False]])


def test_environments_are_closed() -> None:
    closed = []

    class Closing(Samples):
        def close(self) -> None:
            closed.append(self)

    slots = SteppedSlots(lambda: Closing(BOX), 3)
    slots.close()
    assert closed == slots.envs
    closed.clear()
    VectorSlots(SyncVectorEnv([lambda: Closing(BOX)] * 2)).close()
    assert len(closed) == 2


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("mode", AutoresetMode)
def test_vectors_of_every_space_in_every_mode(mode: AutoresetMode, name: str) -> None:
    """Slot 0 ends after two steps, and slot 1 continues."""
    lengths = iter([2, 9])
    vector = SyncVectorEnv([lambda: Samples(SPACES[name], length=next(lengths))] * 2, autoreset_mode=mode)
    slots, envs = VectorSlots(vector), vector.envs
    arrays = Arrays(slots)

    def assert_shows(slot: int, index: int) -> None:
        assert_same(row_of(arrays.obs, slot), as_tree(envs[slot].observations[index]))  # type: ignore[attr-defined]

    slots.reset([0, 1], [5, 6], arrays.obs)
    arrays.step(slots, [0, 0])
    assert_shows(0, 1)
    arrays.step(slots, [0, 0])
    assert_shows(0, 2)  # its own final observation, although SAME_STEP has reset it
    assert_shows(1, 2)
    np.testing.assert_array_equal(arrays.ended, [[False, False], [True, False]])
    slots.reset([0], [7], arrays.obs)
    assert_shows(1, 2)
    assert_shows(0, 2 if mode is AutoresetMode.NEXT_STEP else 3)
    stepped = arrays.step(slots, [0, 0])
    assert_shows(0, 3 if mode is AutoresetMode.NEXT_STEP else 4)
    assert_shows(1, 3)
    if mode is AutoresetMode.NEXT_STEP:
        np.testing.assert_array_equal(stepped, [False, True])
        np.testing.assert_array_equal(arrays.step(slots, [0, 0]), [True, True])
    else:
        assert stepped is None


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_may_start_with_some_of_its_slots(mode: AutoresetMode) -> None:
    vector = SyncVectorEnv([lambda: Samples(BOX)] * 3, autoreset_mode=mode)
    slots = VectorSlots(vector)
    arrays = Arrays(slots)
    slots.reset([2], [11], arrays.obs)
    BOX.seed(11)
    np.testing.assert_allclose(arrays.obs[2], BOX.sample(), rtol=1e-6)
    for _ in range(6):  # past the end of the inactive slots' episodes
        arrays.step(slots, [0, 0, 0], active=[2])


def test_a_vector_without_a_mode_has_gymnasiums_default() -> None:
    vector = SyncVectorEnv([lambda: Samples(BOX)])
    del vector.metadata["autoreset_mode"]
    assert VectorSlots(vector).mode is AutoresetMode.NEXT_STEP


def test_a_vector_without_a_list_of_environments_gets_one_seed() -> None:
    seeds = []

    class RecordsSeeds(VectorWrapper):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    slots = VectorSlots(RecordsSeeds(SyncVectorEnv([lambda: Samples(BOX)] * 3)))
    slots.reset([1, 2], [8, 3], Arrays(slots).obs)
    assert seeds == [8]


@pytest.fixture(params=["CartPole-v1", "short"])
def cartpoles(request: pytest.FixtureRequest) -> tuple[CartPoleSlots, gym.Env]:
    """CartPole as slots and as a single environment; the short one is truncated after 12 steps."""
    settings = {"max_episode_steps": 12} if request.param == "short" else {}
    slots = make_slots(EnvSettings("cartpole", settings), 3)
    assert isinstance(slots, CartPoleSlots)
    return slots, gym.make("CartPole-v1", **settings)


def test_cartpole_episodes_equal_those_of_gymnasium(cartpoles: tuple[CartPoleSlots, gym.Env]) -> None:
    """Slot by slot, several episodes each, with actions that balance the pole for a while."""
    slots, env = cartpoles
    arrays, random = Arrays(slots), np.random.default_rng(0)
    seeds, episodes = [100, 200, 300], 0
    steps: list[list[Any]] = [[], [], []]
    slots.reset([0, 1, 2], seeds, arrays.obs)
    firsts = arrays.obs.copy()
    for _ in range(150):
        lean = arrays.obs[:, 2] + arrays.obs[:, 3] > 0
        actions = np.where(random.random(3) < 0.4, ~lean, lean).astype(int)
        arrays.step(slots, actions)
        for slot in range(3):
            row = arrays.obs[slot].copy(), arrays.reward[slot], *arrays.ended[:, slot]
            steps[slot].append((int(actions[slot]), *row))
        for slot in np.flatnonzero(arrays.ended.any(0)).tolist():
            expected_obs, _ = env.reset(seed=seeds[slot])
            np.testing.assert_allclose(firsts[slot], expected_obs, rtol=1e-6)
            for action, obs, reward, terminated, truncated in steps[slot]:
                expected_obs, expected_reward, expected_terminated, expected_truncated, _ = env.step(action)
                np.testing.assert_allclose(obs, expected_obs, rtol=1e-5, atol=1e-7)
                assert (reward, bool(terminated), bool(truncated)) == (
                    expected_reward,
                    expected_terminated,
                    expected_truncated,
                )
            assert terminated or truncated
            steps[slot], seeds[slot], episodes = [], seeds[slot] + 1, episodes + 1
            slots.reset([slot], [seeds[slot]], arrays.obs)
            firsts[slot] = arrays.obs[slot]
    assert episodes > 5
    slots.close()


def test_a_fallen_cartpole_keeps_falling_until_it_is_reset() -> None:
    slots = make_slots(EnvSettings("cartpole"), 2)
    arrays = Arrays(slots)
    slots.reset([0, 1], [0, 1], arrays.obs)
    while not arrays.ended[0].all():
        arrays.step(slots, [1, 1])
    before = arrays.obs.copy()
    arrays.step(slots, [1, 1])
    assert (abs(arrays.obs[:, 2]) > abs(before[:, 2])).all()
    slots.reset([1], [5], arrays.obs)
    assert abs(arrays.obs[1]).max() <= 0.05
    assert abs(arrays.obs[0, 2]) > 0.2


class FixedOutcome(gym.Env[Any, Any]):
    """Returns the values it was made with."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space, first: Any, next_obs: Any, *outcome: Any) -> None:
        self.observation_space, self.first = space, first
        self.answer = next_obs, *(outcome or (1.0, False, False)), {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.first, {}

    def step(self, action: Any) -> Any:
        return self.answer


BYTES, FLOATS = spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-1, 1, (2,), np.float32)
NESTED = spaces.Dict({"a": spaces.Discrete(3, start=1), "b": FLOATS})
ZEROS = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (FixedOutcome(BYTES, np.zeros(2, np.uint8), np.array([np.nan, 5.0])), "float64 [nan, 5.0]"),
        (FixedOutcome(BYTES, np.zeros(2, np.uint8), np.array([300, 5])), "int64 [300, 5]"),
        (FixedOutcome(BYTES, np.zeros(2, np.uint8), np.array([-1, 5], np.int16)), "int16 [-1, 5]"),
        (FixedOutcome(FLOATS, ZEROS, np.array(["1", "2"])), "<U1 ['1', '2']"),
        (FixedOutcome(FLOATS, ZEROS, np.array([1j, 0])), "complex128"),
        (FixedOutcome(spaces.Discrete(4), 0, 7), "7, which is not in Discrete(4)"),
        (FixedOutcome(spaces.MultiDiscrete([2, 3]), np.array([0, 0]), np.array([1, 3])), "[1 3], which is not in"),
        (FixedOutcome(NESTED, {"a": 1, "b": ZEROS}, {"a": 0, "b": ZEROS}), "0, which is not in Discrete(3, start=1)"),
        (FixedOutcome(FLOATS, ZEROS, ZEROS, "1.5", False, False), "reward is '1.5'"),
        (FixedOutcome(FLOATS, ZEROS, ZEROS, 1.0, "no", False), "terminated is 'no'"),
        (FixedOutcome(FLOATS, ZEROS, ZEROS, 1.0, False, None), "truncated is None"),
        (FixedOutcome(FLOATS, ZEROS, ZEROS, np.zeros(2), False, False), "reward is array"),
    ],
)
def test_values_outside_the_space_are_refused(env: FixedOutcome, message: str) -> None:
    slots = SteppedSlots(lambda: env, 1)
    obs = empty(slots.observation_space, (1,))
    slots.reset([0], [0], obs)
    with pytest.raises(EnvironmentFailed) as caught:
        slots.step(np.zeros(1, np.int64), [0], obs, np.zeros(1, np.float32), np.zeros((2, 1), bool))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("space", "obs_value"),
    [
        (FLOATS, np.array([1, 0])),
        (FLOATS, np.array([0.5, 0.25])),
        (BYTES, np.array([255, 0])),
        (BYTES, [1, 2]),
        (spaces.MultiBinary(2), np.array([True, False])),
    ],
)
def test_values_of_another_dtype_that_fit_are_accepted(space: spaces.Space, obs_value: Any) -> None:
    slots = SteppedSlots(lambda: FixedOutcome(space, obs_value, obs_value, np.float16(2), np.bool_(True), 0), 1)
    obs, reward, ended = empty(space, (1,)), np.zeros(1, np.float32), np.zeros((2, 1), bool)
    slots.reset([0], [0], obs)
    slots.step(np.zeros(1, np.int64), [0], obs, reward, ended)
    assert obs[0].tolist() == [float(number) for number in obs_value]
    assert (reward[0], *ended[:, 0]) == (2, True, False)


def test_if_an_environment_cannot_be_made_the_others_are_closed() -> None:
    opened: list[str] = []

    class Fragile(FixedOutcome):
        def __init__(self) -> None:
            if len(opened) == 3:
                raise OSError("no more environments")
            super().__init__(FLOATS, ZEROS, ZEROS)
            opened.append("open")

        def close(self) -> None:
            opened[opened.index("open")] = "closed"

    with pytest.raises(OSError, match="no more"):
        SteppedSlots(Fragile, 4)
    assert opened == ["closed"] * 3
