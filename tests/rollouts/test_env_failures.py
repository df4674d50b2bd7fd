"""The error of an environment that fails names its worker, shard, slot, and the step of its episode."""

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from raceway.agents import make_policy
from raceway.errors import EnvironmentFailed
from raceway.rollouts.collector import Collector
from tests.rollouts.toy_envs import KINDS, Counting, Fault, slots_of

PLANS = [[2, -3], [4, -1, 3, -6], [5]]
VECTORS = [mode.name for mode in AutoresetMode]
RAISING = ["raises", "shape", "type of reward"]
NON_FINITE = ["nan", "infinite", "nan reward"]

# Episodes and steps of environment 1: first and later episodes, first and last steps, after a truncated one.
PLACES = [(0, 0), (0, 2), (0, 3), (1, 0), (2, 0), (2, 1), (2, 2), (3, 5)]


def faulty(kind: str, what: str, episode: int, step: int, name: int = 1) -> tuple[Collector, list[Counting]]:
    """Return a collector with an environment that fails in this episode and step, and all environments."""
    envs = [Counting(index, plan) for index, plan in enumerate(PLANS)]
    envs[name].fault = Fault(what, episode, step)
    policy = make_policy(envs[0].observation_space, envs[0].action_space, hidden=(4,), seed=0)
    return Collector(slots_of(kind, envs), policy, seed=0, shard=7, worker="rollout-2"), envs


def place(step: int, name: int = 1) -> str:
    return f"worker rollout-2, shard 7, environment {name} of 3, step {step} of its episode"


def failure(call: Any, *args: Any) -> EnvironmentFailed:
    with pytest.raises(EnvironmentFailed) as raised, np.errstate(invalid="ignore"):
        call(*args)
    return raised.value


PROBLEMS = {
    "raises": "environment step raised RuntimeError: the simulator broke down",
    "shape": "environment step raised ValueError: an observation of shape (2,); expected (3,)",
    "type of reward": "environment step raised TypeError: reward is {'points': 3}, of type dict",
    "nan": "environment step returned an observation of [nan, nan, nan]",
    "infinite": "environment step returned an observation of [1.0, inf, ",
    "nan reward": "environment step returned a reward of [nan]",
}


@pytest.mark.parametrize("what", [*RAISING, *NON_FINITE])
def test_location_in_whole_episodes(what: str) -> None:
    for episode, step in PLACES:
        collector, _ = faulty("stepped", what, episode, step)
        error = failure(collector.episodes, [1, 4, 2])
        assert (error.place, error.slot) == (place(step), 1), (episode, step)
        assert error.problem.startswith(PROBLEMS[what])
        assert str(error) == f"{error.problem}\n  in {error.place}"


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("what", NON_FINITE)
def test_location_in_a_vector(kind: str, what: str) -> None:
    for episode, step in PLACES:
        collector, _ = faulty(kind, what, episode, step)
        error = failure(collector.episodes, [1, 4, 2])
        assert (error.place, error.slot) == (place(step), 1), (episode, step)
        assert error.problem.startswith(PROBLEMS[what])


def collect_fragments(collector: Collector, num: int) -> None:
    for number in range(-(-30 // num)):
        collector.fragment(num, number)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", NON_FINITE)
@pytest.mark.parametrize("num", [1, 2, 7, 30])
def test_location_in_fragments(kind: str, what: str, num: int) -> None:
    """Also if the episode began in an earlier fragment."""
    for episode, step in PLACES:
        if what != "nan reward" and step == PLANS[1][episode] - 1:
            continue  # the last observation of a terminated episode is in no fragment
        collector, _ = faulty(kind, what, episode, step)
        error = failure(collect_fragments, collector, num)
        assert (error.place, error.slot) == (place(step), 1), (episode, step)
        assert error.problem.startswith(PROBLEMS[what])


@pytest.mark.parametrize("what", RAISING)
@pytest.mark.parametrize("num", [1, 4])
def test_location_of_exceptions_in_fragments(what: str, num: int) -> None:
    for episode, step in PLACES:
        collector, _ = faulty("stepped", what, episode, step)
        error = failure(collect_fragments, collector, num)
        assert (error.place, error.slot) == (place(step), 1), (episode, step)
        assert error.problem.startswith(PROBLEMS[what])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("episode", [0, 1, 3])
@pytest.mark.parametrize("fragments", [False, True])
def test_a_reset_with_a_non_finite_observation(kind: str, episode: int, fragments: bool) -> None:
    collector, _ = faulty(kind, "nan", episode, -1)
    error = failure(*((collector.fragment, 15) if fragments else (collector.episodes, [1, 4, 2])))
    assert error.problem == "environment reset returned an observation of [nan, nan, nan]"
    assert (error.place, error.slot) == (place(0), 1)


@pytest.mark.parametrize("episode", [0, 1, 3])
@pytest.mark.parametrize("fragments", [False, True])
@pytest.mark.parametrize("what", ["raises", "shape"])
def test_a_reset_that_raises(what: str, episode: int, fragments: bool) -> None:
    collector, _ = faulty("stepped", what, episode, -1)
    error = failure(*((collector.fragment, 15) if fragments else (collector.episodes, [1, 4, 2])))
    assert error.problem == PROBLEMS[what].replace("step", "reset")
    assert (error.place, error.slot) == (place(0), 1)


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize(("episode", "step", "verb"), [(0, -1, "reset"), (1, 0, "step")])
def test_the_slot_is_unknown_if_a_vector_raises(kind: str, episode: int, step: int, verb: str) -> None:
    collector, _ = faulty(kind, "raises", episode, step)
    error = failure(collector.episodes, [1, 4, 2])
    assert error.problem == f"environment {verb} raised RuntimeError: the simulator broke down"
    assert error.place == "worker rollout-2, shard 7, one of 3 environments"
    assert isinstance(error.__cause__, EnvironmentFailed)
    assert isinstance(error.__cause__.__cause__, RuntimeError)


def test_location_in_a_later_call() -> None:
    """Rows left over from earlier calls are not part of the episode."""
    collector, _ = faulty("stepped", "raises", 7, 2)
    for number in range(3):
        collector.episodes([3, 2, 4], number)
    error = failure(collector.episodes, [3, 2, 4], 3)
    assert error.place == place(2)


def test_a_long_episode_is_checked_before_its_end() -> None:
    env = Counting(0, [10**9], Fault("nan", 0, 100))
    policy = make_policy(env.observation_space, env.action_space, hidden=(4,), seed=0)
    collector = Collector(slots_of("stepped", [env]), policy, seed=0, shard=0)
    error = failure(collector.episodes, [1])
    assert error.place == "shard 0, environment 0 of 1, step 100 of its episode"
    assert len(env.episodes[0].steps) < 10_000


def test_the_first_of_several_failures_is_reported() -> None:
    collector, envs = faulty("stepped", "nan reward", 0, 3)
    envs[2].fault = Fault("nan", 0, 1)
    error = failure(collector.episodes, [1, 1, 1])
    assert error.place == place(1, name=2)


@pytest.mark.parametrize("kind", VECTORS)
def test_values_of_finished_slots_are_not_checked(kind: str) -> None:
    """A slot that has finished is still stepped, but its values are not part of the batch."""
    collector, envs = faulty(kind, "nan", 2, 1, name=0)
    with np.errstate(invalid="ignore"):
        batch = collector.episodes([1, 4, 1])
    assert np.isfinite(batch["obs"]).all()
    assert len(envs[0].episodes) > 2


@pytest.mark.parametrize("fragments", [False, True])
def test_after_a_failure_all_slots_begin_new_episodes(fragments: bool) -> None:
    collector, envs = faulty("stepped", "raises", 1, 0)
    failure(*((collector.fragment, 6) if fragments else (collector.episodes, [2, 2, 2])))
    since = [len(env.episodes) for env in envs]
    batch = collector.fragment(4, 1)
    np.testing.assert_array_equal(batch["obs"][0, :, 1], [number + 1 for number in since])
    np.testing.assert_array_equal(batch["obs"][0, :, 2], 0)
    np.testing.assert_array_equal(batch["episode_length"][0], abs(PLANS[0][since[0] % 2]))


def test_the_error_can_be_pickled() -> None:
    collector, _ = faulty("stepped", "raises", 0, 1)
    error = failure(collector.episodes, [1, 1, 1])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.problem, copy.slot, copy.place) == (str(error), error.problem, 1, place(1))


def test_a_reward_of_none_raises() -> None:
    """It would become NaN in an array."""

    class Silent(Counting):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, None, *rest

    envs = [Silent(0, [3])]
    policy = make_policy(envs[0].observation_space, envs[0].action_space, hidden=(4,), seed=0)
    error = failure(Collector(slots_of("stepped", envs), policy, seed=0, shard=0).episodes, [1])
    assert error.problem == "environment step raised TypeError: reward is None, of type NoneType"
