"""Explorers: ε-greedy actions with one ε or one for each slot, random first steps, and their knobs."""

import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import Categorical, EpsilonGreedy, Gaussian, Policy, Sample, UniformWarmUp, make_policy
from raceway.agents.distributions import MASKED_LOGIT
from raceway.agents.policy import ExploringActor
from raceway.envs import SteppedSlots
from raceway.errors import ConfigError
from raceway.learner.exploration import Exploration
from raceway.rollouts.collector import Collector
from tests.rollouts.toy_envs import Walk

OBS = spaces.Box(-1, 1, (3,))
BOX = spaces.Box(np.array([-2, 0, 5], np.float32), np.array([2, 1, 9], np.float32))
DISCRETE = spaces.Discrete(3)
Q_VALUES = np.array([0.0, 1.0, 0.5], np.float32)


def rows(num: int) -> np.ndarray:
    return np.tile(Q_VALUES, (num, 1))


def box_policy() -> Policy:
    return make_policy(OBS, BOX, hidden=(4,), seed=0)


def warm_up(steps: int = 5) -> UniformWarmUp:
    return UniformWarmUp(BOX, steps, Sample())


# ε-greedy.


@pytest.mark.parametrize("start", [0, 7])
def test_without_epsilon_actions_are_greedy(start: int) -> None:
    actions = EpsilonGreedy(0.0).choose(Categorical(3, start), rows(200), np.random.default_rng(0))
    assert actions.tolist() == [1 + start] * 200


def test_epsilon_is_the_share_of_uniform_actions() -> None:
    num, epsilon = 30_000, 0.3
    actions = EpsilonGreedy(epsilon).choose(Categorical(3, 4), rows(num), np.random.default_rng(0)) - 4
    expected = num * (np.full(3, epsilon / 3) + (1 - epsilon) * np.array([0, 1, 0]))
    counts = np.bincount(actions, minlength=3)
    assert ((counts - expected) ** 2 / expected).sum() < 2 + 4 * np.sqrt(2 * 2)  # χ² with two degrees of freedom


def test_every_slot_has_its_own_epsilon() -> None:
    explorer, random = EpsilonGreedy([0.0, 1.0, 0.5]), np.random.default_rng(0)
    actions = np.array([explorer.choose(Categorical(3), rows(3), random) for _ in range(3000)])
    greedy = (actions == 1).mean(0)
    assert greedy[0] == 1
    assert greedy[1:] == pytest.approx([1 / 3, 0.5 + 0.5 / 3], abs=0.04)


def test_a_masked_action_is_not_explored() -> None:
    outputs = rows(2000)
    outputs[:, 2] = MASKED_LOGIT
    actions = EpsilonGreedy(1.0).choose(Categorical(3), outputs, np.random.default_rng(0))
    assert set(actions.tolist()) == {0, 1}


# Knobs.


def test_knobs_are_changed_by_name() -> None:
    explorer = EpsilonGreedy(1.0)
    explorer.set_knobs({"epsilon": 0.25})
    assert explorer.knobs == {"epsilon": np.float32(0.25)}
    with pytest.raises(ConfigError, match=r"unknown knob of EpsilonGreedy 'epsilom'. Did you mean 'epsilon'\?"):
        explorer.set_knobs({"epsilom": 0.25})
    with pytest.raises(ConfigError, match="unknown knob of Sample 'epsilon'"):
        Sample().set_knobs({"epsilon": 0.25})


def test_knobs_are_copies() -> None:
    values = np.array([0.5, 0.25], np.float32)
    explorer = EpsilonGreedy(values)
    other = explorer.for_slots(2)
    values[:] = 0
    explorer.knobs["epsilon"][0] = 1
    assert other.knobs["epsilon"].tolist() == [0.5, 0.25]


@pytest.mark.parametrize(
    ("epsilon", "num", "expected"),
    [
        (0.5, 3, 0.5),
        ([0.5, 0.25], 2, [0.5, 0.25]),
        ([0.5, 0.25], 1, [0.5]),
        ([0.5, 0.25], 5, [0.5, 0.25, 0.5, 0.25, 0.5]),
    ],
)
def test_knobs_for_another_number_of_rows(epsilon: object, num: int, expected: object) -> None:
    explorer = EpsilonGreedy(epsilon)
    assert explorer.for_slots(num).knobs["epsilon"].tolist() == expected
    assert explorer.knobs["epsilon"].tolist() == epsilon, "the original is not changed"


def test_the_knobs_of_a_run_keep_their_shapes() -> None:
    """A schedule sets one number; an explorer with one for each slot gets it for all of them."""
    exploration = Exploration(EpsilonGreedy([0.5, 0.25]))
    exploration.set(epsilon=0.125)
    assert exploration.knobs["epsilon"].tolist() == [0.125, 0.125]
    exploration.set(epsilon=[0.5, 1.0])
    state = exploration.state()
    exploration.set(epsilon=0.0)
    assert state["epsilon"].tolist() == [0.5, 1.0], "a saved state does not change"
    exploration.restore(state)
    assert exploration.knobs["epsilon"].tolist() == [0.5, 1.0]
    with pytest.raises(ConfigError, match="unknown knob of EpsilonGreedy 'sigma'"):
        exploration.check_knobs(["sigma"])


# Acting as an explorer decides.


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_a_policy_acts_as_its_explorer_decides(network: str) -> None:
    policy = make_policy(OBS, DISCRETE, network, (4,), seed=0)
    obs, explorer = np.random.default_rng(1).normal(size=(64, 3)).astype(np.float32), EpsilonGreedy(0.5)
    state = policy.initial_state(64)
    outputs, _ = policy.outputs(obs, state)
    actions, _ = policy.acting(np.random.default_rng(0), explorer)(obs, state)
    expected = explorer.choose(policy.distribution, outputs, np.random.default_rng(0))
    np.testing.assert_array_equal(actions, expected)
    greedy, _ = policy.acting(None, explorer)(obs, state)
    np.testing.assert_array_equal(greedy, outputs.argmax(-1))


def test_a_pickled_explorer_explores_alike() -> None:
    explorer = UniformWarmUp(BOX, 3, EpsilonGreedy([0.5, 0.25]))
    other = pickle.loads(pickle.dumps(explorer))
    other.set_knobs({"epsilon": [0.0, 1.0]})
    assert other.then.knobs["epsilon"].tolist() == [0.0, 1.0], "the knobs are those of the explorer after it"


# Random first steps.


def test_the_first_steps_are_uniform_over_the_box() -> None:
    """By the test of Kolmogorov and Smirnov: the largest distance between the two distribution functions."""
    num, random = 4000, np.random.default_rng(0)
    actions = np.concatenate([warm_up(5).choose_without_outputs(step, num // 5, random) for step in range(5)])  # type: ignore[misc]
    assert actions.shape == (num, 3)
    assert actions.dtype == np.float32
    for column, low, high in zip(actions.T, BOX.low, BOX.high, strict=True):
        quantiles = np.sort((column - low) / (high - low))
        steps = np.arange(num + 1) / num
        distance = max((steps[1:] - quantiles).max(), (quantiles - steps[:-1]).max())
        assert distance < 1.63 / np.sqrt(num)  # the critical value at a level of 1 %
    correlations = np.corrcoef(actions.T)[np.triu_indices(3, 1)]
    assert (abs(correlations) < 4 / np.sqrt(num)).all()


def test_after_the_first_steps_another_explorer_chooses() -> None:
    policy, explorer = box_policy(), warm_up(5)
    obs, outputs = np.zeros((2, 3), np.float32), policy.outputs(np.zeros((2, 3), np.float32), {})[0]
    assert explorer.choose_without_outputs(4, 2, np.random.default_rng(0)) is not None
    assert explorer.choose_without_outputs(5, 2, np.random.default_rng(0)) is None
    actions, _ = policy.acting(np.random.default_rng(0), explorer, first_step=5)(obs, {})
    np.testing.assert_array_equal(actions, Gaussian((3,)).sample(outputs, np.random.default_rng(0)))


def test_the_first_steps_have_an_action_for_every_row_of_nested_observations() -> None:
    vector = spaces.Box(-1, 1, (3,))
    policy = make_policy(spaces.Dict({"inner": spaces.Dict({"x": vector, "y": vector}), "z": vector}), BOX)
    rows = np.zeros((5, 3), np.float32)
    act = policy.acting(np.random.default_rng(0), warm_up(1))
    for _ in range(2):  # a random step, and one of the policy
        assert act({"inner": {"x": rows, "y": rows}, "z": rows}, {})[0].shape == (5, 3)


@pytest.mark.parametrize("lengths", [[12], [4, 8], [5, 7], [6, 6], [1] * 12], ids=str)
def test_the_numbers_do_not_depend_on_the_split_into_fragments(lengths: list[int]) -> None:
    policy, obs = box_policy(), np.ones((2, 3), np.float32)

    def actions(lengths: list[int]) -> np.ndarray:
        random, first, chosen = np.random.default_rng(3), 0, []
        for length in lengths:
            act = policy.acting(random, warm_up(5), first)
            assert isinstance(act, ExploringActor)
            chosen += [act(obs, {})[0] for _ in range(length)]
            first += length
        return np.array(chosen)

    np.testing.assert_array_equal(actions(lengths), actions([12]))


class Narrow(nn.Module):
    """Returns means of 7, and almost no deviation."""

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tensor([7.0, 7.0, 7.0, -30.0, -30.0, -30.0]).expand(len(obs), -1)


class Moving(Walk):
    """A walk with continuous actions."""

    action_space = BOX

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return super().step(int(action[0] > 0))


@pytest.mark.parametrize("fragment_steps", [1, 2, 7, 14])
def test_the_first_steps_of_rollouts_are_random_in_every_slot(fragment_steps: int) -> None:
    """After that the policy acts: its deviation is tiny, so its actions are equal to its means."""
    slots = SteppedSlots(Moving, 3)
    policy = make_policy(slots.observation_space, BOX, lambda *_: Narrow())
    collector = Collector(slots, policy, seed=0, shard=0, explorer=warm_up(7))
    fragments = [collector.fragment(fragment_steps, number) for number in range(14 // fragment_steps)]
    collector.close()
    actions = np.concatenate([fragment["action"] for fragment in fragments])
    assert actions.shape == (14, 3, 3)
    random = (abs(actions - 7.0) > 1e-3).any(-1)
    assert random.all(1).tolist() == [True] * 7 + [False] * 7
    assert random.any(1).tolist() == [True] * 7 + [False] * 7
    assert all(BOX.contains(action) for action in actions[:7].reshape(-1, 3))


def test_random_first_steps_need_a_bounded_box() -> None:
    for space in (spaces.MultiDiscrete([2, 3]), spaces.Box(-np.inf, np.inf, (2,))):
        with pytest.raises(ConfigError, match="need a Box with finite bounds, or Discrete, not"):
            UniformWarmUp(space, 5, Sample())
