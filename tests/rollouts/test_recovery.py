"""An environment that fails is rebuilt, its episode dropped, and none of its steps leak into other episodes."""

import logging
import pickle
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from raceway.agents import ActorCritic, Policy, make_policy
from raceway.algorithms import find_algorithm
from raceway.algorithms.impala import loss as impala_loss
from raceway.envs import EnvSettings, SteppedSlots
from raceway.envs.env_vector import environment_error
from raceway.errors import EnvironmentFailed
from raceway.flow import Shard
from raceway.learner.learner import tensors_of
from raceway.ops import AddAdvantages, AddLogProbs, RolloutSettings, RolloutWorker, TrainStats
from raceway.ops import Transitions as MakeTransitions
from raceway.ops.batches import concat_fragments
from raceway.rl import Batch, sequences
from raceway.rl.seeding import Purpose, derive_seed, episode_seed
from raceway.rollouts.collector import Collector
from raceway.rollouts.fragment_values import RunningReturns, evaluate_fragment
from raceway.rollouts.recovery import FailureLog, Recovery
from tests.example_agents import example_actor_critic, makes_actor
from tests.rollouts.toy_envs import Counting, Fault, slots_of

VECTORS = [mode.name for mode in AutoresetMode]


def policy_of() -> Policy:
    return make_policy(Counting.observation_space, Counting.action_space, hidden=(4,), seed=0)


def actor_critic_of(**settings: Any) -> ActorCritic:
    return example_actor_critic(Counting.observation_space, Counting.action_space, hidden=(4,), **settings)


def collector_of(
    envs: Sequence[Counting], num: int = 2, max_failures: int = 10, policy: Policy | None = None, **more: Any
) -> Collector:
    """Return a collector of the first environments; the others replace those that fail, in order."""
    queue = iter(envs)
    slots = SteppedSlots(lambda: next(queue), num)
    policy = policy or policy_of()
    return Collector(slots, policy, seed=3, shard=5, worker="rollouts-1", recovery=Recovery(max_failures), **more)


def failing(what: str = "raises", episode: int = 0, step: int = 2, plan: Sequence[int] = (5,)) -> list[Counting]:
    """Return an environment with episodes of three steps, one that fails, and one that replaces it."""
    return [Counting(0, [3]), Counting(1, plan, Fault(what, episode, step)), Counting(2, [4])]


# Fragments.


def test_a_failed_step_in_the_middle_of_a_fragment() -> None:
    collector = collector_of(failing())
    batch = collector.fragment(6)
    assert batch["valid"].T.tolist() == [[True] * 6, [True, True, False, True, True, True]]
    assert batch["obs"][:, 1].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 2], [2, 1, 0], [2, 1, 1], [2, 1, 2]]
    assert batch["reward"].T.tolist() == [
        [1, 2, 3, 101, 102, 103],
        [10_001, 10_002, 0, 20_001, 20_002, 20_003],
    ]
    assert np.argwhere(batch["terminated"]).tolist() == [[2, 0], [5, 0]]
    assert np.argwhere(batch["truncated"]).tolist() == [[1, 1]]
    assert batch["final_obs"].tolist() == [[1, 1, 2]]
    assert batch["last_obs"].tolist() == [[0, 3, 0], [2, 1, 3]]
    assert batch["episode_return"].tolist() == [6, 306]
    assert batch["episode_length"].tolist() == [3, 3]
    assert batch["episode_lost"].tolist() == [2]
    after = collector.fragment(6, 1)
    assert "valid" not in after
    assert after["episode_lost"].tolist() == []
    assert after["episode_return"].tolist() == [80_010, 606, 80_410, 906]
    assert after["episode_length"].tolist() == [4, 3, 4, 3]


def test_a_failure_in_the_first_step_of_a_fragment_does_not_change_the_one_before() -> None:
    collector = collector_of(failing())
    first, second = collector.fragment(2), collector.fragment(2, 1)
    assert not first["truncated"].any()
    assert first["last_obs"][1].tolist() == [1, 1, 2]
    assert second["valid"][:, 1].tolist() == [False, True]
    assert second["obs"][:, 1].tolist() == [[1, 1, 2], [2, 1, 0]]
    assert not second["truncated"].any()
    assert len(second["final_obs"]) == 0
    assert second["episode_lost"].tolist() == [2]


def test_a_failure_in_the_last_step_of_a_fragment() -> None:
    collector = collector_of(failing())
    batch = collector.fragment(3)
    assert batch["valid"][:, 1].tolist() == [True, True, False]
    assert batch["last_obs"][1].tolist() == [2, 1, 0]
    after = collector.fragment(4, 1)
    assert after["obs"][:, 1].tolist() == [[2, 1, 0], [2, 1, 1], [2, 1, 2], [2, 1, 3]]
    assert after["episode_return"].tolist() == [306, 80_010]


def test_a_failure_in_the_first_step_of_an_episode_truncates_nothing() -> None:
    envs = failing(episode=1, step=0, plan=[2, 5])
    batch = collector_of(envs).fragment(5)
    assert batch["valid"][:, 1].tolist() == [True, True, False, True, True]
    assert np.argwhere(batch["terminated"][:, [1]]).tolist() == [[1, 0]]
    assert not batch["truncated"].any()
    assert batch["episode_lost"].tolist() == [0]
    assert batch["episode_return"].tolist() == [20_003, 6]


def test_last_observations_stay_in_order() -> None:
    """Those of episodes that a failure truncated are recorded one step later than others."""
    envs = [Counting(0, [4], Fault("raises", 0, 2)), Counting(1, [-2, -3]), Counting(2, [9])]
    batch = collector_of(envs).fragment(5)
    assert np.argwhere(batch["truncated"]).tolist() == [[1, 0], [1, 1], [4, 1]]
    assert batch["final_obs"].tolist() == [[0, 1, 2], [1, 1, 2], [1, 2, 3]]


def test_several_environments_fail_in_one_step() -> None:
    envs = [Counting(name, [9], Fault("raises", 0, 1)) for name in range(3)]
    batch = collector_of([*envs, *(Counting(name, [9]) for name in (3, 4, 5))], num=3).fragment(4)
    assert not batch["valid"][1].any()
    assert batch["obs"][2, :, 0].tolist() == [3, 4, 5]
    assert batch["final_obs"].tolist() == [[0, 1, 1], [1, 1, 1], [2, 1, 1]]
    assert batch["episode_lost"].tolist() == [1, 1, 1]
    assert [len(env.episodes[0].steps) for env in envs] == [2, 2, 2]


def test_the_reward_of_a_failed_step_is_discarded() -> None:
    """Also if the environment returned a reward with an observation of the wrong shape."""
    batch = collector_of(failing("shape")).fragment(4)
    assert batch["reward"][2, 1] == 0
    assert not batch["truncated"][2, 1]


def test_the_recurrent_state_is_reset_after_a_failure() -> None:
    policy = make_policy(Counting.observation_space, Counting.action_space, "lstm", (4,), seed=0)
    queue = iter(failing())
    collector = Collector(SteppedSlots(lambda: next(queue), 2), policy, seed=0, shard=0, recovery=Recovery(1))
    collector.fragment(3)
    assert not any(part[1].any() for part in collector.recurrent_state.values())


# Operators on fragments.


@pytest.mark.parametrize("num_steps", [2, 6])
def test_transitions_are_truncated_where_an_episode_was_dropped(num_steps: int) -> None:
    """Also if its last step was in the fragment before."""
    collector, transitions = collector_of(failing()), MakeTransitions(0.5, 3)
    parts = [transitions(collector.fragment(num_steps, number)) for number in range(12 // num_steps)]
    rows = {
        tuple(obs): (reward, discount, tuple(after))
        for part in parts
        for obs, reward, discount, after in zip(
            part["obs"].tolist(), part["reward"], part["discount"], part["next_obs"].tolist(), strict=True
        )
    }
    assert rows[1, 1, 0] == (10_001 + 0.5 * 10_002, 0.25, (1, 1, 2))
    assert rows[1, 1, 1] == (10_002, 0.5, (1, 1, 2))
    assert (1, 1, 2) not in rows
    assert rows[2, 1, 0] == (20_001 + 0.5 * 20_002 + 0.25 * 20_003, 0.125, (2, 1, 3))
    assert rows[2, 1, 3][:2] == (20_004, 0)
    assert sum(part["episode_lost"].tolist() == [2] for part in parts) == 1
    assert TrainStats.merge([TrainStats.of(part) for part in parts]).env_failures == 1


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_sequences_end_an_episode_that_was_dropped(num_steps: int) -> None:
    collector, held, parts = collector_of(failing()), None, []
    for number in range(4 // num_steps):
        part, held = sequences(collector.fragment(num_steps, number), 0.5, 2, 4, 0, held)
        parts += [part] if len(part["mask"]) else []
    assert parts[0]["obs"][1].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 2], [2, 1, 0]]
    assert parts[0]["mask"].tolist() == [[True] * 4, [True, True, False, True]]
    assert parts[0]["begins"][1, 3]
    assert parts[0]["next_obs"][1, :2].tolist() == [[1, 1, 2], [1, 1, 2]]
    assert parts[0]["discount"][1, :2].tolist() == [0.25, 0.5]


def test_advantages_end_where_an_episode_was_dropped() -> None:
    agent = actor_critic_of()
    collector = collector_of(failing(), policy=agent.actor, keep_network_outputs=True)
    batch, actor = collector.fragment(6), SimpleNamespace(agent=agent)
    _, values, _ = evaluate_fragment(agent, batch, 0.5)
    with torch.inference_mode():
        bootstrap = float(agent.values(torch.tensor([[1.0, 1, 2]]))[0])
    rows = AddAdvantages(0.5, 0.8)(batch, actor=actor)
    assert len(rows["advantage"]) == 11
    advantages = {tuple(obs): advantage for obs, advantage in zip(rows["obs"].tolist(), rows["advantage"], strict=True)}
    last = 10_002 + 0.5 * bootstrap - values[1, 1]
    first = 10_001 + 0.5 * values[1, 1] - values[0, 1] + 0.5 * 0.8 * last
    assert advantages[1, 1, 1] == pytest.approx(last, rel=1e-5)
    assert advantages[1, 1, 0] == pytest.approx(first, rel=1e-5)
    assert rows["episode_lost"].tolist() == [2]


@pytest.mark.parametrize("num_steps", [1, 2, 6])
def test_running_returns_restart_after_a_dropped_episode(num_steps: int) -> None:
    """They scale rewards: the dropped episode does not contribute to those that follow."""
    agent = actor_critic_of(normalise_obs=True)
    collector, running = collector_of(failing()), RunningReturns()
    parts = [
        evaluate_fragment(agent, collector.fragment(num_steps, number), 0.5, running).batch
        for number in range(6 // num_steps)
    ]
    returns = np.concatenate([part["running_return"] for part in parts])[:, 1]
    assert returns[:2].tolist() == [10_001, 10_002 + 5000.5]
    assert returns[3:5].tolist() == [20_001, 20_002 + 10_000.5]


def test_fragments_of_which_only_some_have_a_valid_column() -> None:
    batches = []
    for envs in ([Counting(0, [3]), Counting(1, [5])], failing(), [Counting(3, [3]), Counting(4, [5])]):
        agent = actor_critic_of()
        fragment = collector_of(envs, policy=agent.actor).fragment(4)
        batches.append(AddLogProbs(0.5)(fragment, actor=SimpleNamespace(agent=agent)))
    assert ["valid" in batch for batch in batches] == [False, True, False]
    for order in ([0, 1, 2], [1, 0], [2, 0]):
        joined = concat_fragments([batches[index] for index in order])
        if 1 not in order:
            assert "valid" not in joined
            continue
        column = 2 * order.index(1) + 1
        expected = np.ones((4, 2 * len(order)), bool)
        expected[2, column] = False
        np.testing.assert_array_equal(joined["valid"], expected)
        assert joined["episode_lost"].tolist() == [2]


def test_steps_that_are_not_valid_do_not_change_the_loss() -> None:
    """IMPALA trains on whole fragments: the values of a failed step change none of its metrics."""
    agent = actor_critic_of()
    fragment = collector_of(failing(), policy=agent.actor).fragment(6)
    batch = concat_fragments([AddLogProbs(0.5)(fragment, actor=SimpleNamespace(agent=agent))])
    cfg = find_algorithm("impala").settings()

    def metrics(batch: Batch) -> list[float]:
        total, parts = impala_loss(agent, tensors_of(batch), cfg)
        return [float(value.detach()) for value in (total, *parts.values())]

    expected = metrics(batch)
    changed = {name: np.copy(batch[name]) for name in ("reward", "log_prob", "action", "obs")}
    changed["reward"][2, 1], changed["log_prob"][2, 1] = 1e6, -3.0
    changed["action"][2, 1], changed["obs"][2, 1] = 3, 17.0
    assert metrics({**batch, **changed}) == pytest.approx(expected, rel=1e-6)
    changed["reward"][1, 1] += 1.0
    assert metrics({**batch, **changed}) != pytest.approx(expected, rel=1e-6)


# Whole episodes.


def test_the_requested_number_of_whole_episodes_is_collected() -> None:
    envs = [Counting(0, [3]), Counting(1, [2, 5], Fault("raises", 1, 2)), Counting(2, [4])]
    batch = collector_of(envs).episodes([2, 2])
    assert batch["length"].tolist() == [3, 3, 2, 4]
    rewards = [1, 2, 3, 101, 102, 103, 10_001, 10_002, 20_001, 20_002, 20_003, 20_004]
    assert batch["reward"].tolist() == rewards
    assert batch["final_obs"].tolist() == [[0, 1, 3], [0, 2, 3], [1, 1, 2], [2, 1, 4]]
    assert batch["episode_lost"].tolist() == [2]
    assert TrainStats.of(batch).env_failures == 1
    assert len(TrainStats.of(batch).returns) == 4


@pytest.mark.parametrize("episode", [0, 1])
@pytest.mark.parametrize("whole", [False, True])
def test_a_reset_that_fails(episode: int, whole: bool) -> None:
    collector = collector_of(failing(episode=episode, step=-1, plan=[2, 5]))
    batch = collector.episodes([2, 2]) if whole else collector.fragment(5)
    assert "valid" not in batch
    assert batch["episode_lost"].tolist() == [0]
    assert 20_001 in batch["reward"]


def test_rebuilding_an_environment_is_retried() -> None:
    calls = []

    def make() -> Counting:
        calls.append(len(calls))
        if len(calls) in (3, 4):
            raise OSError("no display")
        return Counting(len(calls), [5], Fault("raises", 0, 1) if len(calls) == 2 else None)

    slots = SteppedSlots(make, 2)
    batch = Collector(slots, policy_of(), seed=0, shard=0, recovery=Recovery(3)).fragment(3)
    assert batch["obs"][2, 1].tolist() == [5, 1, 0]
    assert batch["episode_lost"].tolist() == [1, 0, 0]


# Seeds.


@pytest.mark.parametrize("whole", [False, True])
def test_a_seed_that_failed_is_not_used_again(whole: bool) -> None:
    envs = [Counting(0, [3]), *(Counting(name, [5], Fault("raises", 0, -1)) for name in (1, 2, 3)), Counting(4, [5])]
    collector = collector_of(envs)
    _ = collector.episodes([1, 1], 4) if whole else collector.fragment(2)
    seeds = [env.episodes[0].seed for env in envs[1:]]
    number = 4 if whole else 0
    path = (3, Purpose.ENVIRONMENT, 5, 1, number)
    assert seeds == [episode_seed(3, 5, 1, number), *(derive_seed(*path, failures) for failures in (1, 2, 3))]
    if whole:  # a call does not depend on earlier ones
        collector.episodes([1, 1], 5)
        assert envs[4].episodes[-1].seed == episode_seed(3, 5, 1, 5)


# Values that are not finite are detected later: the whole item is dropped.


@pytest.mark.parametrize("what", ["nan", "infinite", "nan reward"])
def test_a_fragment_with_non_finite_values_is_collected_again(what: str) -> None:
    envs = failing(what, plan=[-5])
    collector = collector_of(envs)
    before = {name: array.copy() for name, array in collector.policy.weights().items()}
    with np.errstate(invalid="ignore"):
        batch = collector.fragment(6)
    assert "valid" not in batch
    assert batch["obs"][:, 0, 1].tolist() == [4, 4, 4, 5, 5, 5]  # two episodes and an open one were dropped
    assert batch["obs"][:, 1].tolist() == [[2, 1, 0], [2, 1, 1], [2, 1, 2], [2, 1, 3], [2, 2, 0], [2, 2, 1]]
    assert batch["episode_lost"].tolist() == [2]
    assert batch["episode_length"].tolist() == [3, 4, 3]
    for name, array in collector.policy.weights().items():
        assert array.tobytes() == before[name].tobytes()


def transitions_between_episodes(parts: Sequence[Batch]) -> list[Any]:
    """Return the transitions from one episode to another that are not marked as ended."""
    return [
        (obs, after)
        for part in parts
        for obs, after, discount in zip(part["obs"].tolist(), part["next_obs"].tolist(), part["discount"], strict=True)
        if obs[:2] != after[:2] and discount
    ]


@pytest.mark.parametrize("reason", ["not finite", "not restored"])
def test_held_steps_are_truncated_when_all_episodes_are_dropped(reason: str) -> None:
    """They are of the fragment before, and other episodes follow in every slot."""
    envs = [
        Counting(0, [9]),
        Counting(1, [9], Fault("nan", 0, 5) if reason == "not finite" else None),
        Counting(2, [9]),
    ]
    collector, transitions, parts = collector_of(envs), MakeTransitions(0.5, 3), list[Batch]()
    running, agent = RunningReturns(), actor_critic_of(normalise_obs=True)
    first = collector.fragment(4)
    parts.append(transitions(first))
    evaluate_fragment(agent, first, 0.5, running)
    rows, held = sequences(first, 0.5, 1, 3)
    if reason == "not restored":
        snapshot = {name: value for name, value in collector.snapshot().items() if name != "episode_log"}
        collector = collector_of([Counting(3, [9]), Counting(4, [9])])
        assert not collector.resume(snapshot)
    with np.errstate(invalid="ignore"):
        second = collector.fragment(4, 1)
    assert second["restarted"].tolist() == [True, True]
    assert second["obs"][0, :, 2].tolist() == [0, 0]
    parts.append(transitions(second))
    assert transitions_between_episodes(parts) == []
    ends = {tuple(row): (reward, discount) for row, reward, discount in zip(
        parts[1]["obs"].tolist(), parts[1]["reward"], parts[1]["discount"], strict=True)}  # fmt: skip
    assert ends[0, 1, 3] == (4, 0.5), "the last held step has its own reward, and is bootstrapped"
    rows, _ = sequences(second, 0.5, 2, 3, 0, held)
    assert rows["span"][:2].tolist() == [[1, 2, 1]] * 2, "the held step ends its episode"
    assert rows["begins"][:2].tolist() == [[False, True, False]] * 2
    assert "restarted" not in collector.fragment(4, 2)
    evaluated = evaluate_fragment(agent, second, 0.5, running).batch
    assert evaluated["running_return"][0].tolist() == second["reward"][0].tolist()
    assert "restarted" not in evaluated


def test_whole_episodes_with_non_finite_values_are_collected_again() -> None:
    with np.errstate(invalid="ignore"):
        batch = collector_of(failing("nan", 1, 1, [2, 5])).episodes([2, 2])
    assert batch["length"].tolist() == [3, 3, 4, 4]
    assert np.isfinite(batch["obs"]).all()
    assert batch["episode_lost"].tolist() == [1]


def test_the_observation_after_a_failure_in_the_last_step_is_checked() -> None:
    envs = [Counting(0, [9]), Counting(1, [9], Fault("raises", 0, 2)), Counting(2, [9], Fault("nan", 0, -1))]
    with np.errstate(invalid="ignore"):
        batch = collector_of([*envs, Counting(3, [9])]).fragment(3)
    assert np.isfinite(batch["last_obs"]).all()
    assert batch["obs"][:, 1, 0].tolist() == [3, 3, 3]
    assert batch["episode_lost"].tolist() == [2, 0]


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("what", ["raises", "nan"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_vector_is_rebuilt_as_a_whole(kind: str, what: str, whole: bool) -> None:
    calls = []

    def make(num_made: int) -> Any:
        calls.append(num_made)
        fault = Fault(what, 0, 1) if num_made < 2 else None
        return slots_of(kind, [Counting(2 * len(calls) + index, [4], fault if index else None) for index in (0, 1)])

    recovery = Recovery(5, make)
    slots = recovery.make_slots(lambda slot: ("", 0))
    collector = Collector(slots, policy_of(), seed=0, shard=0, recovery=recovery)
    with np.errstate(invalid="ignore"):
        batch = collector.episodes([1, 2]) if whole else collector.fragment(4)
    assert calls == [0, 1, 2]
    assert set(np.reshape(batch["obs"], (-1, 3))[:, 0].tolist()) == {6, 7}
    assert len(batch["episode_lost"]) == 2
    if whole:
        assert batch["length"].tolist() == [4, 4, 4]


# The failure budget.


@pytest.mark.parametrize("what", ["raises", "nan"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("max_failures", [0, 1, 4])
def test_too_many_consecutive_failures_raise(what: str, whole: bool, max_failures: int) -> None:
    envs: list[Counting] = []

    def make() -> Counting:
        envs.append(Counting(len(envs), [3], Fault(what, 0, 1)))
        return envs[-1]

    collector = Collector(
        SteppedSlots(make, 1), policy_of(), seed=0, shard=7, worker="w", recovery=Recovery(max_failures)
    )
    with pytest.raises(EnvironmentFailed) as raised, np.errstate(invalid="ignore"):
        _ = collector.episodes([1]) if whole else collector.fragment(20)
    assert len(envs) == max_failures + 1
    place, *rest = raised.value.place.split("\n")
    assert place == "worker w, shard 7, environment 0 of 1, step 1 of its episode"
    budget = (
        f"  failure {max_failures + 1} in a row with no episode ended in between (max_env_failures is {max_failures})"
    )
    assert rest == ([budget] if max_failures else [])


def test_an_episode_that_ends_resets_the_failure_count() -> None:
    def make() -> Counting:
        return Counting(0, [2], Fault("raises", 1, 1))

    collector = Collector(SteppedSlots(make, 1), policy_of(), seed=0, shard=0, recovery=Recovery(1))
    lost = [len(collector.fragment(4, number)["episode_lost"]) for number in range(20)]
    assert sum(lost) == 20


def test_episodes_dropped_with_an_item_do_not_reset_the_failure_count() -> None:
    """Otherwise an environment that gives NaN in every fragment would be retried for ever."""
    envs = [Counting(0, [1]), *(Counting(name, [5], Fault("nan", 0, 2)) for name in range(1, 9))]
    with pytest.raises(EnvironmentFailed, match="failure 4 in a row"), np.errstate(invalid="ignore"):
        collector_of(envs, max_failures=3).fragment(6)


# Logs.


class Unprintable(Exception):
    """Has no text, and cannot be pickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Saboteur(Counting):
    """Raises an armed error in one of its methods, once."""

    armed: dict[str, BaseException]

    def reset(self, **settings: Any) -> Any:
        self._raise("reset")
        return super().reset(**settings)

    def step(self, action: Any) -> Any:
        self._raise("step")
        return super().step(action)

    def close(self) -> None:
        self._raise("close")

    def _raise(self, where: str) -> None:
        error = self.armed.pop(where, None)
        if error is not None:
            raise error


ERRORS = {
    "cannot be pickled": Unprintable(1, 2),
    "exit": SystemExit(3),
    "memory": MemoryError(),
    "usual": OSError("no x"),
}


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("what", ERRORS)
def test_every_kind_of_error_is_logged(where: str, what: str, caplog: pytest.LogCaptureFixture) -> None:
    env, spare = Saboteur(0, [3]), Counting(1, [3])
    env.armed = {where: ERRORS[what], "close": ERRORS[what]}
    with caplog.at_level(logging.WARNING):
        batch = collector_of([env, spare], num=1).fragment(3)
    assert len(batch["episode_lost"]) == 1
    name = type(ERRORS[what]).__name__
    assert f"environment {where} raised {name}: " in caplog.text
    assert f"environment close raised {name}: " in caplog.text
    assert "in worker rollouts-1, shard 5, environment 0 of 1, step 0 of its episode" in caplog.text
    assert "failure 1 in a row" in caplog.text
    assert "Traceback (most recent call last)" in caplog.text
    assert "in _raise" in caplog.text


def test_all_environments_are_closed_although_closing_raises() -> None:
    envs = [Saboteur(name, [3]) for name in range(3)]
    for env in envs:
        env.armed = {"close": ERRORS["usual"]}
    SteppedSlots(lambda: envs.pop(0), 3).close()
    assert not envs


# Workers.


class Tasks(Counting):
    """Observes its task; the first two instances fail in their first episode."""

    num_made = 0

    def __init__(self) -> None:
        Tasks.num_made += 1
        super().__init__(0, [3], Fault("raises", 0, 1) if Tasks.num_made < 3 else None)
        self.task = -1.0

    def sample_tasks(self, num: int, seed: int) -> Any:
        return np.arange(num) + 40.0

    def set_task(self, task: Any) -> None:
        self.task = float(task)

    def _observe(self) -> Any:
        obs = super()._observe()
        return np.array([self.task, *obs[1:]], np.float32)


def test_a_rebuilt_environment_has_its_task() -> None:
    settings = RolloutSettings(
        env=EnvSettings(Tasks), agent=makes_actor(), num_shards=2, slots_per_shard=1, num_episodes=2, items_per_task=1
    )
    batch = RolloutWorker(settings, "w").sample(shard=Shard(1, 2), number=0)
    assert batch["obs"][:, 0].tolist() == [41, 41, 41]
    assert len(batch["episode_lost"]) > 0


class Reluctant(Counting):
    """Cannot be created at first."""

    num_made = 0

    def __init__(self) -> None:
        Reluctant.num_made += 1
        if Reluctant.num_made < 4:
            raise OSError("no display")
        super().__init__(0, [3])


@pytest.mark.parametrize("max_failures", [2, 3])
def test_creating_environments_is_retried(max_failures: int) -> None:
    Reluctant.num_made = 0
    settings = RolloutSettings(
        env=EnvSettings(Reluctant), agent=makes_actor(), num_shards=1, slots_per_shard=1, fragment_steps=3,
        max_env_failures=max_failures,
    )  # fmt: skip
    worker = RolloutWorker(settings, "w")
    if max_failures == 3:
        assert len(worker.sample(shard=Shard(0, 1), number=0)["episode_lost"]) == 3
        return
    with pytest.raises(EnvironmentFailed, match=r"environment construction raised OSError: no display\n  in worker w"):
        worker.sample(shard=Shard(0, 1), number=0)


def test_envpool_is_rebuilt() -> None:
    settings = RolloutSettings(
        env=EnvSettings("CartPole-v1", vector="envpool"), agent=makes_actor(), num_shards=1, slots_per_shard=2,
        fragment_steps=4,
    )  # fmt: skip
    worker = RolloutWorker(settings, "w")
    first = worker.sample(shard=Shard(0, 1), number=0)
    slots: Any = worker._collectors[0].slots

    def breaks(*_: Any) -> Any:
        raise RuntimeError("a thread died")

    slots.env = SimpleNamespace(step=breaks, close=slots.env.close)
    batch = worker.sample(shard=Shard(0, 1), number=1)
    assert worker._collectors[0].slots is not slots
    assert len(batch["episode_lost"]) == 1
    assert not np.array_equal(batch["obs"][0], first["obs"][0]), "the same seed again"
    worker.close()


def test_many_failures_are_logged_rarely_over_all_shards(caplog: pytest.LogCaptureFixture) -> None:
    """The first of a kind with its traceback, then the 10th, the 100th and so on in one line; all are counted."""
    log = FailureLog()
    shards = [Recovery(1000, log=log) for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        for number in range(150):
            failure = environment_error(0, "step", RuntimeError(number))
            failure.__cause__ = RuntimeError(number)
            shards[number % 3].record_failure(failure, f"shard {number % 3}")
        shards[0].record_failure(environment_error(0, "reset", OSError("no")), "shard 0")
    assert [(bool(record.exc_info), record.getMessage().splitlines()[0]) for record in caplog.records] == [
        (True, "environment step raised RuntimeError: 0"),
        (False, "environment step raised RuntimeError: 9, for the 10th time, in shard 0"),
        (False, "environment step raised RuntimeError: 99, for the 100th time, in shard 0"),
        (False, "environment reset raised OSError: no"),
    ]
    assert sum(len(shard.take_lost_episodes()["episode_lost"]) for shard in shards) == 151


def test_observations_that_are_not_finite_are_of_one_kind(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever values they have; the error that ends the run has the number of all of them, and can be pickled."""
    envs = [Counting(name, [5], Fault("infinite", 0, 1)) for name in range(12)]
    log = FailureLog()
    collector = Collector(
        SteppedSlots(iter(envs).__next__, 1), policy_of(), seed=0, shard=0, recovery=Recovery(11, log=log)
    )
    with pytest.raises(EnvironmentFailed) as raised, np.errstate(invalid="ignore"):
        collector.fragment(3)
    assert [record.getMessage().partition(", ")[0].splitlines()[0] for record in caplog.records] == [
        f"environment step returned an observation of [{name}.0" for name in (0, 9)
    ]
    assert list(log._counts) == [raised.value.kind] == ["environment step returned an observation"]
    assert pickle.loads(pickle.dumps(raised.value)).num_failures == 12
