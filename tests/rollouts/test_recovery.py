"""An environment that fails is made again: its episode is dropped, and nothing of it leaks into others."""

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from raceway.agents import Policy, make_policy
from raceway.algorithms import find_algorithm
from raceway.algorithms.impala import loss as impala_loss
from raceway.envs import EnvSettings, Purpose, SteppedSlots, derive_seed, episode_seed
from raceway.errors import EnvironmentFailed
from raceway.flow import Shard
from raceway.learner.learner import tensors_of
from raceway.ops import AddAdvantages, AddLogProbs, ConcatFragments, RolloutSettings, RolloutWorker, TrainStats
from raceway.ops import Transitions as MakeTransitions
from raceway.rl import Batch, sequences
from raceway.rollouts.collector import Collector
from raceway.rollouts.fragments import RunningReturns, evaluate_fragment
from raceway.rollouts.recovery import Recovery
from tests.rollouts.toy_envs import Counting, Fault, slots_of

VECTORS = [mode.name for mode in AutoresetMode]


def policy_of(kind: str = "actor") -> Policy:
    return make_policy(Counting.observation_space, Counting.action_space, hidden=(4,), seed=0, kind=kind)


def collector_of(envs: Sequence[Counting], num: int = 2, most: int = 10, **more: Any) -> Collector:
    """Return a collector of the first environments; the others take the places of those that fail, in that order."""
    queue = iter(envs)
    slots = SteppedSlots(lambda: next(queue), num)
    kind = more.pop("kind", "actor")
    return Collector(slots, policy_of(kind), seed=3, shard=5, worker="rollouts-1", recovery=Recovery(most), **more)


def failing(what: str = "raises", episode: int = 0, step: int = 2, plan: Sequence[int] = (5,)) -> list[Counting]:
    """Return one that ends episodes after three steps, one that fails, and one to take its place."""
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


def test_in_the_first_step_of_a_fragment_what_came_before_is_left_as_it_was() -> None:
    collector = collector_of(failing())
    first, second = collector.fragment(2), collector.fragment(2, 1)
    assert not first["truncated"].any()
    assert first["last_obs"][1].tolist() == [1, 1, 2]
    assert second["valid"][:, 1].tolist() == [False, True]
    assert second["obs"][:, 1].tolist() == [[1, 1, 2], [2, 1, 0]]
    assert not second["truncated"].any()
    assert len(second["final_obs"]) == 0
    assert second["episode_lost"].tolist() == [2]


def test_in_the_last_step_of_a_fragment() -> None:
    collector = collector_of(failing())
    batch = collector.fragment(3)
    assert batch["valid"][:, 1].tolist() == [True, True, False]
    assert batch["last_obs"][1].tolist() == [2, 1, 0]
    after = collector.fragment(4, 1)
    assert after["obs"][:, 1].tolist() == [[2, 1, 0], [2, 1, 1], [2, 1, 2], [2, 1, 3]]
    assert after["episode_return"].tolist() == [306, 80_010]


def test_in_the_first_step_of_an_episode_nothing_is_cut_short() -> None:
    envs = failing(episode=1, step=0, plan=[2, 5])
    batch = collector_of(envs).fragment(5)
    assert batch["valid"][:, 1].tolist() == [True, True, False, True, True]
    assert np.argwhere(batch["terminated"][:, [1]]).tolist() == [[1, 0]]
    assert not batch["truncated"].any()
    assert batch["episode_lost"].tolist() == [0]
    assert batch["episode_return"].tolist() == [20_003, 6]


def test_last_observations_stay_in_order() -> None:
    """Those of episodes that were cut short by a failure are found one step later than others."""
    envs = [Counting(0, [4], Fault("raises", 0, 2)), Counting(1, [-2, -3]), Counting(2, [9])]
    batch = collector_of(envs).fragment(5)
    assert np.argwhere(batch["truncated"]).tolist() == [[1, 0], [1, 1], [4, 1]]
    assert batch["final_obs"].tolist() == [[0, 1, 2], [1, 1, 2], [1, 2, 3]]


def test_several_fail_in_one_step() -> None:
    envs = [Counting(name, [9], Fault("raises", 0, 1)) for name in range(3)]
    batch = collector_of([*envs, *(Counting(name, [9]) for name in (3, 4, 5))], num=3).fragment(4)
    assert not batch["valid"][1].any()
    assert batch["obs"][2, :, 0].tolist() == [3, 4, 5]
    assert batch["final_obs"].tolist() == [[0, 1, 1], [1, 1, 1], [2, 1, 1]]
    assert batch["episode_lost"].tolist() == [1, 1, 1]
    assert [len(env.played[0].steps) for env in envs] == [2, 2, 2]


def test_a_failed_step_brings_nothing_into_another_fragment() -> None:
    """Of one that gave a reward, and then what does not fit."""
    batch = collector_of(failing("shape")).fragment(4)
    assert batch["reward"][2, 1] == 0
    assert not batch["truncated"][2, 1]


def test_a_recurrent_policy_remembers_nothing_of_it() -> None:
    policy = make_policy(Counting.observation_space, Counting.action_space, "lstm", (4,), seed=0)
    queue = iter(failing())
    collector = Collector(SteppedSlots(lambda: next(queue), 2), policy, seed=0, shard=0, recovery=Recovery(1))
    collector.fragment(3)
    assert not any(part[1].any() for part in collector.recurrent_state.values())


# What is made of fragments.


@pytest.mark.parametrize("cut", [2, 6])
def test_transitions_are_cut_short_where_an_episode_was_dropped(cut: int) -> None:
    """Also if the step before was in the fragment before."""
    collector, make = collector_of(failing()), MakeTransitions(0.5, 3)
    parts = [make(collector.fragment(cut, number)) for number in range(12 // cut)]
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


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_sequences_say_where_an_episode_was_dropped(cut: int) -> None:
    collector, held, found = collector_of(failing()), None, []
    for number in range(4 // cut):
        made, held = sequences(collector.fragment(cut, number), 4, 0, held)
        found += [made] if made else []
    assert found[0]["obs"][1].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 2], [2, 1, 0]]
    assert found[0]["mask"].tolist() == [[True] * 4, [True, False, False, True]]
    assert found[0]["truncated"][1].tolist() == [False, True, False, False]


def test_advantages_reach_as_far_as_the_episode_was_played() -> None:
    collector = collector_of(failing(), kind="actor-critic", keep_network_outputs=True)
    batch, actor = collector.fragment(6), SimpleNamespace(policy=collector.policy)
    _, values, _ = evaluate_fragment(collector.policy, batch, 0.5)
    with torch.inference_mode():
        beyond = float(collector.policy.values(torch.tensor([[1.0, 1, 2]]))[0])
    found = AddAdvantages(0.5, 0.8)(batch, actor=actor)
    assert len(found["advantage"]) == 11
    at = {tuple(obs): advantage for obs, advantage in zip(found["obs"].tolist(), found["advantage"], strict=True)}
    last = 10_002 + 0.5 * beyond - values[1, 1]
    first = 10_001 + 0.5 * values[1, 1] - values[0, 1] + 0.5 * 0.8 * last
    assert at[1, 1, 1] == pytest.approx(last, rel=1e-5)
    assert at[1, 1, 0] == pytest.approx(first, rel=1e-5)
    assert found["episode_lost"].tolist() == [2]


@pytest.mark.parametrize("cut", [1, 2, 6])
def test_discounted_returns_begin_anew(cut: int) -> None:
    """By which rewards are scaled: nothing of the dropped episode is in what follows."""
    policy = make_policy(
        Counting.observation_space, Counting.action_space, hidden=(4,), seed=0, kind="actor-critic", normalise=True
    )
    collector, running = collector_of(failing()), RunningReturns()
    parts = [evaluate_fragment(policy, collector.fragment(cut, number), 0.5, running).batch for number in range(6 // cut)]
    found = np.concatenate([part["running_return"] for part in parts])[:, 1]
    assert found[:2].tolist() == [10_001, 10_002 + 5000.5]
    assert found[3:5].tolist() == [20_001, 20_002 + 10_000.5]


def test_fragments_of_which_only_some_say_which_steps_count() -> None:
    batches = []
    for envs in ([Counting(0, [3]), Counting(1, [5])], failing(), [Counting(3, [3]), Counting(4, [5])]):
        collector = collector_of(envs, kind="actor-critic")
        batches.append(AddLogProbs(0.5)(collector.fragment(4), actor=collector))
    assert ["valid" in batch for batch in batches] == [False, True, False]
    for order in ([0, 1, 2], [1, 0], [2, 0]):
        joined = ConcatFragments()([batches[place] for place in order])
        if 1 not in order:
            assert "valid" not in joined
            continue
        column = 2 * order.index(1) + 1
        expected = np.ones((4, 2 * len(order)), bool)
        expected[2, column] = False
        np.testing.assert_array_equal(joined["valid"], expected)
        assert joined["episode_lost"].tolist() == [2]


def test_what_does_not_count_is_not_learned_from() -> None:
    """IMPALA sees whole fragments: whatever stands in a step that failed changes no figure of its loss."""
    collector = collector_of(failing(), kind="actor-critic")
    batch = ConcatFragments()([AddLogProbs(0.5)(collector.fragment(6), actor=collector)])
    cfg = find_algorithm("impala").settings()

    def figures(batch: Batch) -> list[float]:
        total, parts = impala_loss(collector.policy, tensors_of(batch), cfg)
        return [float(one.detach()) for one in (total, *parts.values())]

    usual = figures(batch)
    changed = {name: np.copy(batch[name]) for name in ("reward", "log_prob", "action", "obs")}
    changed["reward"][2, 1], changed["log_prob"][2, 1] = 1e6, -3.0
    changed["action"][2, 1], changed["obs"][2, 1] = 3, 17.0
    assert figures({**batch, **changed}) == pytest.approx(usual, rel=1e-6)
    changed["reward"][1, 1] += 1.0
    assert figures({**batch, **changed}) != pytest.approx(usual, rel=1e-6)


# Whole episodes.


def test_whole_episodes_are_as_many_as_were_asked_for() -> None:
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


def test_an_environment_that_cannot_be_made_again_at_once() -> None:
    made = []

    def make() -> Counting:
        made.append(len(made))
        if len(made) in (3, 4):
            raise OSError("no display")
        return Counting(len(made), [5], Fault("raises", 0, 1) if len(made) == 2 else None)

    slots = SteppedSlots(make, 2)
    batch = Collector(slots, policy_of(), seed=0, shard=0, recovery=Recovery(3)).fragment(3)
    assert batch["obs"][2, 1].tolist() == [5, 1, 0]
    assert batch["episode_lost"].tolist() == [1, 0, 0]


# Seeds.


@pytest.mark.parametrize("whole", [False, True])
def test_a_seed_that_failed_does_not_come_again(whole: bool) -> None:
    envs = [Counting(0, [3]), *(Counting(name, [5], Fault("raises", 0, -1)) for name in (1, 2, 3)), Counting(4, [5])]
    collector = collector_of(envs)
    _ = collector.episodes([1, 1], 4) if whole else collector.fragment(2)
    seeds = [env.played[0].seed for env in envs[1:]]
    number = 4 if whole else 0
    path = (3, Purpose.ENVIRONMENT, 5, 1, number)
    assert seeds == [episode_seed(3, 5, 1, number), *(derive_seed(*path, again) for again in (1, 2, 3))]
    if whole:  # what a call plays does not depend on those before
        collector.episodes([1, 1], 5)
        assert envs[4].played[-1].seed == episode_seed(3, 5, 1, 5)


# What is not finite is found later: all of the item is dropped.


@pytest.mark.parametrize("what", ["nan", "infinite", "nan reward"])
def test_a_fragment_with_what_is_not_finite_is_played_again(what: str) -> None:
    envs = failing(what, plan=[-5])
    collector = collector_of(envs)
    before = {name: array.copy() for name, array in collector.policy.weights().items()}
    with np.errstate(invalid="ignore"):
        batch = collector.fragment(6)
    assert "valid" not in batch
    assert batch["obs"][:, 0, 1].tolist() == [4, 4, 4, 5, 5, 5]  # two episodes were dropped, and one that had begun
    assert batch["obs"][:, 1].tolist() == [[2, 1, 0], [2, 1, 1], [2, 1, 2], [2, 1, 3], [2, 2, 0], [2, 2, 1]]
    assert batch["episode_lost"].tolist() == [2]
    assert batch["episode_length"].tolist() == [3, 4, 3]
    for name, array in collector.policy.weights().items():
        assert array.tobytes() == before[name].tobytes()


def apart(parts: Sequence[Batch]) -> list[Any]:
    """Return the transitions from one episode into another that are said to go on."""
    return [
        (obs, after)
        for part in parts
        for obs, after, discount in zip(part["obs"].tolist(), part["next_obs"].tolist(), part["discount"], strict=True)
        if obs[:2] != after[:2] and discount
    ]


@pytest.mark.parametrize("how", ["not finite", "not brought back"])
def test_steps_that_wait_for_others_are_cut_short_when_all_episodes_are_dropped(how: str) -> None:
    """Of the fragment before: what follows is of other episodes, in every slot."""
    envs = [Counting(0, [9]), Counting(1, [9], Fault("nan", 0, 5) if how == "not finite" else None), Counting(2, [9])]
    collector, make, parts = collector_of(envs), MakeTransitions(0.5, 3), list[Batch]()
    running, policy = (
        RunningReturns(),
        make_policy(
            Counting.observation_space, Counting.action_space, hidden=(4,), seed=0, kind="actor-critic", normalise=True
        ),
    )
    first = collector.fragment(4)
    parts.append(make(first))
    evaluate_fragment(policy, first, 0.5, running)
    cut, held = sequences(first, 3, 0)
    if how == "not brought back":
        saved = {name: value for name, value in collector.snapshot().items() if name != "history"}
        collector = collector_of([Counting(3, [9]), Counting(4, [9])])
        assert not collector.resume(saved)
    with np.errstate(invalid="ignore"):
        second = collector.fragment(4, 1)
    assert second["anew"].tolist() == [True, True]
    assert second["obs"][0, :, 2].tolist() == [0, 0]
    parts.append(make(second))
    assert apart(parts) == []
    ends = {tuple(row): (reward, discount) for row, reward, discount in zip(
        parts[1]["obs"].tolist(), parts[1]["reward"], parts[1]["discount"], strict=True)}  # fmt: skip
    assert ends[0, 1, 3] == (4, 0.5), "the last one that was held back has its own reward, and a value after it"
    cut, _ = sequences(second, 3, 0, held)
    assert cut["mask"][:2].tolist() == [[False, True, True]] * 2
    assert "anew" not in collector.fragment(4, 2)
    found = evaluate_fragment(policy, second, 0.5, running).batch
    assert found["running_return"][0].tolist() == second["reward"][0].tolist()
    assert "anew" not in found


def test_whole_episodes_with_what_is_not_finite_are_played_again() -> None:
    with np.errstate(invalid="ignore"):
        batch = collector_of(failing("nan", 1, 1, [2, 5])).episodes([2, 2])
    assert batch["length"].tolist() == [3, 3, 4, 4]
    assert np.isfinite(batch["obs"]).all()
    assert batch["episode_lost"].tolist() == [1]


def test_what_is_seen_after_a_failure_in_the_last_step_is_looked_at() -> None:
    envs = [Counting(0, [9]), Counting(1, [9], Fault("raises", 0, 2)), Counting(2, [9], Fault("nan", 0, -1))]
    with np.errstate(invalid="ignore"):
        batch = collector_of([*envs, Counting(3, [9])]).fragment(3)
    assert np.isfinite(batch["last_obs"]).all()
    assert batch["obs"][:, 1, 0].tolist() == [3, 3, 3]
    assert batch["episode_lost"].tolist() == [2, 0]


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("what", ["raises", "nan"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_vector_is_made_again_as_a_whole(kind: str, what: str, whole: bool) -> None:
    made = []

    def make(times_before: int) -> Any:
        made.append(times_before)
        fault = Fault(what, 0, 1) if times_before < 2 else None
        return slots_of(kind, [Counting(2 * len(made) + place, [4], fault if place else None) for place in (0, 1)])

    recovery = Recovery(5, make)
    slots = recovery.make_slots(lambda slot: ("", 0))
    collector = Collector(slots, policy_of(), seed=0, shard=0, recovery=recovery)
    with np.errstate(invalid="ignore"):
        batch = collector.episodes([1, 2]) if whole else collector.fragment(4)
    assert made == [0, 1, 2]
    assert set(np.reshape(batch["obs"], (-1, 3))[:, 0].tolist()) == {6, 7}
    assert len(batch["episode_lost"]) == 2
    if whole:
        assert batch["length"].tolist() == [4, 4, 4]


# The budget.


@pytest.mark.parametrize("what", ["raises", "nan"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("most", [0, 1, 4])
def test_too_many_failures_in_a_row_end_it(what: str, whole: bool, most: int) -> None:
    made: list[Counting] = []

    def make() -> Counting:
        made.append(Counting(len(made), [3], Fault(what, 0, 1)))
        return made[-1]

    collector = Collector(SteppedSlots(make, 1), policy_of(), seed=0, shard=7, worker="w", recovery=Recovery(most))
    with pytest.raises(EnvironmentFailed) as raised, np.errstate(invalid="ignore"):
        _ = collector.episodes([1]) if whole else collector.fragment(20)
    assert len(made) == most + 1
    place, *rest = raised.value.place.split("\n")
    assert place == "worker w, shard 7, environment 0 of 1, step 1 of its episode"
    told = f"  failure {most + 1} in a row with no episode ended in between (max_env_failures is {most})"
    assert rest == ([told] if most else [])


def test_an_episode_that_ends_makes_up_for_failures() -> None:
    def make() -> Counting:
        return Counting(0, [2], Fault("raises", 1, 1))

    collector = Collector(SteppedSlots(make, 1), policy_of(), seed=0, shard=0, recovery=Recovery(1))
    lost = [len(collector.fragment(4, number)["episode_lost"]) for number in range(20)]
    assert sum(lost) == 20


def test_episodes_that_are_dropped_with_an_item_make_up_for_nothing() -> None:
    """Or one that gives NaN in every fragment would be met for ever."""
    envs = [Counting(0, [1]), *(Counting(name, [5], Fault("nan", 0, 2)) for name in range(1, 9))]
    with pytest.raises(EnvironmentFailed, match="failure 4 in a row"), np.errstate(invalid="ignore"):
        collector_of(envs, most=3).fragment(6)


# What is told.


class Unspeakable(Exception):
    """Says nothing about itself, and cannot travel."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Saboteur(Counting):
    """Raises something in one of its methods, once it has been told to."""

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


ERRORS = {"cannot travel": Unspeakable(1, 2), "exit": SystemExit(3), "memory": MemoryError(), "usual": OSError("no x")}


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("what", ERRORS)
def test_whatever_is_raised_is_told(where: str, what: str, caplog: pytest.LogCaptureFixture) -> None:
    env, spare = Saboteur(0, [3]), Counting(1, [3])
    env.armed = {where: ERRORS[what], "close": ERRORS[what]}
    with caplog.at_level(logging.WARNING):
        batch = collector_of([env, spare], num=1).fragment(3)
    assert len(batch["episode_lost"]) == 1
    name = type(ERRORS[what]).__name__
    assert f"{where} of the environment raised {name}: " in caplog.text
    assert f"close of the environment raised {name}: " in caplog.text
    assert "in worker rollouts-1, shard 5, environment 0 of 1, step 0 of its episode" in caplog.text
    assert "failure 1 in a row" in caplog.text
    assert "Traceback (most recent call last)" in caplog.text
    assert "in _raise" in caplog.text


def test_closing_closes_the_others_too() -> None:
    envs = [Saboteur(name, [3]) for name in range(3)]
    for env in envs:
        env.armed = {"close": ERRORS["usual"]}
    SteppedSlots(lambda: envs.pop(0), 3).close()
    assert not envs


# Workers.


class Tasks(Counting):
    """Shows its task, and fails in its first episode when it is one of the first."""

    num_made = 0

    def __init__(self) -> None:
        Tasks.num_made += 1
        super().__init__(0, [3], Fault("raises", 0, 1) if Tasks.num_made < 3 else None)
        self.task = -1.0

    def sample_tasks(self, num: int, seed: int) -> Any:
        return np.arange(num) + 40.0

    def set_task(self, task: Any) -> None:
        self.task = float(task)

    def _show(self) -> Any:
        seen = super()._show()
        return np.array([self.task, *seen[1:]], np.float32)


def test_an_environment_that_was_made_again_has_its_task() -> None:
    settings = RolloutSettings(
        env=EnvSettings(Tasks), num_shards=2, slots_per_shard=1, num_episodes=2, items_per_task=1
    )
    batch = RolloutWorker(settings, "w").sample(shard=Shard(1, 2), number=0)
    assert batch["obs"][:, 0].tolist() == [41, 41, 41]
    assert len(batch["episode_lost"]) > 0


class Reluctant(Counting):
    """Cannot be made at first."""

    num_made = 0

    def __init__(self) -> None:
        Reluctant.num_made += 1
        if Reluctant.num_made < 4:
            raise OSError("no display")
        super().__init__(0, [3])


@pytest.mark.parametrize("most", [2, 3])
def test_making_environments_is_tried_again(most: int) -> None:
    Reluctant.num_made = 0
    settings = RolloutSettings(
        env=EnvSettings(Reluctant), num_shards=1, slots_per_shard=1, fragment_steps=3, max_env_failures=most
    )
    worker = RolloutWorker(settings, "w")
    if most == 3:
        assert len(worker.sample(shard=Shard(0, 1), number=0)["episode_lost"]) == 3
        return
    with pytest.raises(EnvironmentFailed, match=r"making of the environment raised OSError: no display\n  in worker w"):
        worker.sample(shard=Shard(0, 1), number=0)


def test_envpool_is_made_again() -> None:
    settings = RolloutSettings(
        env=EnvSettings("CartPole-v1", vector="envpool"), num_shards=1, slots_per_shard=2, fragment_steps=4
    )
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
