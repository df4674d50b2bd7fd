"""The recurrent state of a policy is the same in rollouts and in training."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import Policy, make_policy
from raceway.rollouts.collector import Collector
from tests.rollouts.toy_envs import KINDS, Counting, Walk, slots_of

PLANS = [[3, -1, 5], [-4, 4], [2, -2, 7, 1]]

kinds = pytest.mark.parametrize("kind", KINDS)


class Learned(nn.Module):
    """A custom recurrent network with a learned initial state."""

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(6))
        self.cell, self.head = nn.GRUCell(observation_space.shape[0], 6), nn.Linear(6, 4)

    def initial_state(self, num: int) -> dict[str, Tensor]:
        return {"memory": self.start.expand(num, -1)}

    def forward(self, obs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        memory = self.cell(obs, state["memory"])
        return self.head(memory), {"memory": memory}


def recurrent(kind: str, envs: Sequence[gym.Env], network: Any = "lstm") -> tuple[Collector, list[np.ndarray]]:
    """Return a collector, and a list that receives the network's outputs for every row."""
    policy = make_policy(envs[0].observation_space, envs[0].action_space, network, (6,), seed=1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter *= 3  # so that the recurrent state matters
    outputs: list[np.ndarray] = []
    sample = policy.distribution.sample

    def recording(params: np.ndarray, random: np.random.Generator) -> np.ndarray:
        outputs.append(params.copy())
        return sample(params, random)

    policy.distribution.sample = recording  # type: ignore[method-assign]
    return Collector(slots_of(kind, envs), policy, seed=0, shard=0), outputs


def counting() -> list[Counting]:
    return [Counting(name, plan, scale=0.2) for name, plan in enumerate(PLANS)]


def outputs_one_by_one(policy: Policy, obs: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Return the network's outputs when each episode is evaluated by itself, from the initial state."""
    rows, at = [], 0
    with torch.no_grad():
        for length in lengths:
            state = policy.initial_state(1)
            for step in range(at, at + length):
                params, state = policy(torch.from_numpy(obs[step : step + 1]), state)
                rows.append(params[0].numpy())
            at += length
    return np.array(rows)


@kinds
@pytest.mark.parametrize("network", ["lstm", Learned])
def test_rollouts_training_and_single_episodes_agree(kind: str, network: Any) -> None:
    collector, outputs = recurrent(kind, counting(), network)
    policy = collector.policy
    for number, counts in enumerate([[3, 2, 4], [1, 0, 3], [2, 4, 1]]):
        outputs.clear()
        batch = collector.episodes(counts, number)
        slots, steps = np.nonzero(collector.valid[: len(outputs)].T)
        collected = np.stack(outputs)[steps, slots]
        np.testing.assert_allclose(collected, outputs_one_by_one(policy, batch["obs"], batch["length"]), atol=1e-5)
        with torch.no_grad():
            np.testing.assert_allclose(policy.params(batch).numpy(), collected, atol=1e-5)
            logs = policy.distribution.log_prob(torch.from_numpy(collected), torch.from_numpy(batch["action"]))
            np.testing.assert_allclose(policy.log_prob(batch).numpy(), logs.numpy(), atol=1e-5)


def test_the_recurrent_state_matters_in_these_tests() -> None:
    """Otherwise the other tests would pass without it."""
    collector, _ = recurrent("stepped", counting())
    batch = collector.episodes([3, 2, 4])
    right = outputs_one_by_one(collector.policy, batch["obs"], batch["length"])
    forgetful = outputs_one_by_one(collector.policy, batch["obs"], [1] * len(right))
    endless = outputs_one_by_one(collector.policy, batch["obs"], [len(right)])
    firsts = np.cumsum(batch["length"]) - batch["length"]
    assert abs(right - forgetful)[np.setdiff1d(np.arange(len(right)), firsts)].max(1).min() > 1e-3
    assert abs(right - endless)[firsts[1:]].max(1).min() > 1e-3


@kinds
@pytest.mark.parametrize("network", ["lstm", Learned])
def test_fragments_have_the_recurrent_state_before_them(kind: str, network: Any) -> None:
    """From `state`, reset wherever an episode begins, each fragment can be evaluated by itself."""
    collector, outputs = recurrent(kind, counting(), network)
    policy = collector.policy
    for number, num in enumerate([5, 1, 8, 3, 12]):
        outputs.clear()
        batch = collector.fragment(num, number)
        valid = batch.get("valid", np.ones((num, 3), bool))
        begins = np.zeros((num + 1, 3), bool)
        begins[1:] = batch["terminated"] | batch["truncated"] | ~valid
        with torch.no_grad():
            for slot in range(3):
                state = {name: torch.from_numpy(part[slot : slot + 1]) for name, part in batch["state"].items()}
                for row in range(num):
                    if begins[row, slot]:
                        state = policy.initial_state(1)
                    params, state = policy(torch.from_numpy(batch["obs"][row, slot][None]), state)
                    np.testing.assert_allclose(outputs[row][slot], params[0].numpy(), atol=1e-5)


@kinds
def test_the_first_fragment_begins_with_the_initial_state(kind: str) -> None:
    collector, _ = recurrent(kind, counting())
    collector.episodes([2, 1, 2])
    state = collector.fragment(5)["state"]
    assert {name: part.shape for name, part in state.items()} == {"hidden": (3, 6), "cell": (3, 6)}
    assert not any(part.any() for part in state.values())
    later = collector.fragment(5, 1)["state"]
    assert later["hidden"].any()


def test_a_feed_forward_policy_has_no_state() -> None:
    envs = counting()
    policy = make_policy(envs[0].observation_space, envs[0].action_space, hidden=(4,), seed=0)
    assert "state" not in Collector(slots_of("stepped", envs), policy, seed=0, shard=0).fragment(3)


@kinds
def test_whole_episodes_begin_with_the_initial_state(kind: str) -> None:
    class Four(Walk):
        action_space = spaces.Discrete(4)

    used, _ = recurrent(kind, [Four(), Four()])
    fresh, _ = recurrent(kind, [Four(), Four()])
    used.episodes([3, 1], 1)
    used.fragment(7)
    batch, other = used.episodes([2, 3], 5), fresh.episodes([2, 3], 5)
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name])


@pytest.mark.parametrize("network", ["mlp", "lstm"])
@pytest.mark.parametrize(
    "action_space", [spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.Box(-1, 1, (2, 2))]
)
def test_log_probabilities_of_every_kind_of_action(network: str, action_space: spaces.Space) -> None:
    class CustomActions(Walk):
        pass

    CustomActions.action_space = action_space
    collector, _ = recurrent("stepped", [CustomActions(), CustomActions()], network)
    policy = collector.policy
    batch = collector.episodes([3, 4])
    params = outputs_one_by_one(policy, batch["obs"], batch["length"])
    expected = policy.distribution.log_prob(torch.from_numpy(params), torch.from_numpy(batch["action"]))
    np.testing.assert_allclose(policy.log_prob(batch).detach().numpy(), expected.numpy(), atol=1e-4)
