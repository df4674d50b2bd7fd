"""What a recurrent policy remembers while it plays is what it remembers while it is trained."""

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
    """A user's recurrent network, whose memory at the start is learned too."""

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
    """Return a collector, and what the network will have given for every row that it acts on."""
    policy = make_policy(envs[0].observation_space, envs[0].action_space, network, (6,), seed=1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter *= 3  # so that what is remembered matters
    acted: list[np.ndarray] = []
    draw = policy.distribution.draw

    def watched(params: np.ndarray, random: np.random.Generator) -> np.ndarray:
        acted.append(params.copy())
        return draw(params, random)

    policy.distribution.draw = watched  # type: ignore[method-assign]
    return Collector(slots_of(kind, envs), policy, seed=0, shard=0), acted


def counting() -> list[Counting]:
    return [Counting(name, plan, scale=0.2) for name, plan in enumerate(PLANS)]


def one_by_one(policy: Policy, obs: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Return what the network gives when each episode is played by itself, from a fresh memory."""
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
def test_acting_training_and_playing_one_by_one_agree(kind: str, network: Any) -> None:
    collector, acted = recurrent(kind, counting(), network)
    policy = collector.policy
    for number, counts in enumerate([[3, 2, 4], [1, 0, 3], [2, 4, 1]]):
        acted.clear()
        batch = collector.episodes(counts, number)
        slots, steps = np.nonzero(collector.valid[: len(acted)].T)
        playing = np.stack(acted)[steps, slots]
        np.testing.assert_allclose(playing, one_by_one(policy, batch["obs"], batch["length"]), atol=1e-5)
        with torch.no_grad():
            np.testing.assert_allclose(policy.params(batch).numpy(), playing, atol=1e-5)
            logs = policy.distribution.log_prob(torch.from_numpy(playing), torch.from_numpy(batch["action"]))
            np.testing.assert_allclose(policy.log_prob(batch).numpy(), logs.numpy(), atol=1e-5)


def test_memory_matters_in_these_tests() -> None:
    """Or the others would hold without any."""
    collector, _ = recurrent("stepped", counting())
    batch = collector.episodes([3, 2, 4])
    right = one_by_one(collector.policy, batch["obs"], batch["length"])
    forgetful = one_by_one(collector.policy, batch["obs"], [1] * len(right))
    endless = one_by_one(collector.policy, batch["obs"], [len(right)])
    firsts = np.cumsum(batch["length"]) - batch["length"]
    assert abs(right - forgetful)[np.setdiff1d(np.arange(len(right)), firsts)].max(1).min() > 1e-3
    assert abs(right - endless)[firsts[1:]].max(1).min() > 1e-3


@kinds
@pytest.mark.parametrize("network", ["lstm", Learned])
def test_fragments_carry_what_was_remembered_before(kind: str, network: Any) -> None:
    """From `state`, with a fresh memory wherever an episode begins, each fragment can be played again by itself."""
    collector, acted = recurrent(kind, counting(), network)
    policy = collector.policy
    for number, num in enumerate([5, 1, 8, 3, 12]):
        acted.clear()
        batch = collector.fragment(num, number)
        valid = batch.get("valid", np.ones((num, 3), bool))
        begins = np.zeros((num + 1, 3), bool)
        begins[1:] = batch["terminated"] | batch["truncated"] | ~valid
        with torch.no_grad():
            for slot in range(3):
                state = {name: torch.from_numpy(part[slot : slot + 1]) for name, part in batch["state"].items()}
                for now in range(num):
                    if begins[now, slot]:
                        state = policy.initial_state(1)
                    params, state = policy(torch.from_numpy(batch["obs"][now, slot][None]), state)
                    np.testing.assert_allclose(acted[now][slot], params[0].numpy(), atol=1e-5)


@kinds
def test_the_first_fragment_remembers_nothing(kind: str) -> None:
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
def test_what_was_played_before_is_forgotten(kind: str) -> None:
    class Four(Walk):
        action_space = spaces.Discrete(4)

    used, _ = recurrent(kind, [Four(), Four()])
    fresh, _ = recurrent(kind, [Four(), Four()])
    used.episodes([3, 1], 1)
    used.fragment(7)
    one, other = used.episodes([2, 3], 5), fresh.episodes([2, 3], 5)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("network", ["mlp", "lstm"])
@pytest.mark.parametrize(
    "action_space", [spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.Box(-1, 1, (2, 2))]
)
def test_log_probabilities_of_every_kind_of_action(network: str, action_space: spaces.Space) -> None:
    class Acting(Walk):
        pass

    Acting.action_space = action_space
    collector, _ = recurrent("stepped", [Acting(), Acting()], network)
    policy = collector.policy
    batch = collector.episodes([3, 4])
    each = one_by_one(policy, batch["obs"], batch["length"])
    wanted = policy.distribution.log_prob(torch.from_numpy(each), torch.from_numpy(batch["action"]))
    np.testing.assert_allclose(policy.log_prob(batch).detach().numpy(), wanted.numpy(), atol=1e-4)
