"""In turn-based environments a step lasts from an agent's turn to its next one, and no other action is recorded."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raceway.agents import Policy, make_policy
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import EnvironmentFailed
from raceway.rl import Batch, row_of, tree_map
from raceway.rollouts.multi_collector import MultiCollector
from raceway.rollouts.recovery import Recovery
from tests.rollouts.turn_games import ACTION_SPACE, OBS_SPACE, Scripted

TIC_TAC_TOE = "pettingzoo:pettingzoo.classic.tictactoe_v3"
CONNECT_FOUR = "pettingzoo.classic.connect_four_v3"


def game(env: str, num_envs: int, num_steps: int, policies: Any, network: Any = "mlp") -> MultiCollector:
    settings = MultiAgentSettings(env, policies)
    made = {
        name: make_policy(*spaces, network=network, hidden=(8,), seed=1) for name, spaces in settings.spaces().items()
    }
    return MultiCollector(settings, num_envs, made, num_steps, seed=3, shard=0)


def steps_of(batches: list[Batch], slot: int) -> Batch:
    """Return all steps of a slot, one after the other."""
    columns: list[Batch] = []
    for batch in batches:
        own = np.flatnonzero(batch["valid"][:, slot])
        names = ("obs", "action", "reward", "terminated", "truncated")
        columns.append({name: row_of(batch[name], (own, slot)) for name in names})
    return tree_map(lambda *parts: np.concatenate(parts), *columns)


def episodes_of(steps: Batch) -> Iterator[Batch]:
    """Yield the completed episodes of a slot."""
    begin = 0
    for end in np.flatnonzero(steps["terminated"] | steps["truncated"]) + 1:
        yield row_of(steps, slice(begin, end))
        begin = end


@pytest.mark.parametrize("shared", [True, False])
def test_tic_tac_toe_has_a_step_for_every_stone(shared: bool) -> None:
    collector = game(TIC_TAC_TOE, 3, 8, lambda agent: "both" if shared else agent)
    fragments = [collector.fragment(number) for number in range(12)]
    outcomes = set()
    for env in range(3):
        players = []
        for player in range(2):
            policy, slot = ("both", 2 * env + player) if shared else (f"player_{player + 1}", env)
            players.append(list(episodes_of(steps_of([batches[policy] for batches in fragments], slot))))
        for first, second in zip(*players, strict=False):
            lengths = len(first["reward"]), len(second["reward"])
            assert 5 <= sum(lengths) <= 9
            assert lengths[0] - lengths[1] in (0, 1)
            for own in (first, second):
                masks, boards = own["obs"]["action_mask"], own["obs"]["observation"]
                rows = np.arange(len(masks))
                assert masks[rows, own["action"]].all()
                assert (own["reward"][:-1] == 0).all()
                assert own["terminated"].tolist() == [False] * (len(rows) - 1) + [True]
                # The player's own stones are those of its earlier actions, so none of them was ignored.
                for row in rows:
                    stones = np.flatnonzero(boards[row, :, :, 0])
                    assert sorted(stones) == sorted(own["action"][:row])
            outcomes.add((first["reward"][-1], second["reward"][-1]))
            won_by_first = lengths[0] > lengths[1]
            if first["reward"][-1]:
                assert first["reward"][-1] == (1 if won_by_first else -1)  # who has placed the last stone has won
    assert {(1, -1), (-1, 1)} <= outcomes <= {(1, -1), (-1, 1), (0, 0)}


def test_connect_four_obeys_masks_and_reports_returns() -> None:
    collector = game(CONNECT_FOUR, 2, 20, lambda _: "both")
    fragments = [collector.fragment(number)["both"] for number in range(4)]
    returns = np.concatenate([batch["episode_return"] for batch in fragments])
    assert len(returns) >= 4
    assert set(returns) <= {-1, 0, 1}
    assert abs(returns.sum()) <= 2  # games of which only one player has left
    for batch in fragments:
        chosen = np.take_along_axis(batch["obs"]["action_mask"], batch["action"][..., None], -1).squeeze(-1)
        assert chosen[batch["valid"]].all()


def scripted(num_steps: int, num_envs: int = 1, max_failures: int = 0, **kwargs: Any) -> MultiCollector:
    policies = {name: make_policy(OBS_SPACE, ACTION_SPACE, hidden=(4,), seed=0) for name in "pq"}
    Scripted.num_episodes = 0
    settings = MultiAgentSettings(Scripted, {"a": "p", "b": "p", "c": "q"}, kwargs)
    return MultiCollector(settings, num_envs, policies, num_steps, seed=0, shard=0, recovery=Recovery(max_failures))


# Rewards that `a`, `b` and `c` get between their turns. Those before the first action of an agent belong to no step.
REWARDS = {"a": [1 + 2, 3 + 4, 5 + 6], "b": [20 + 30 + 40 + 50, 60], "c": [400]}
RETURNS = {"a": 21, "b": 210, "c": 1000}


def test_rewards_until_the_next_turn_are_added_up() -> None:
    collector = scripted(7)
    p, q = collector.fragment().values()
    assert p["num_turns"].tolist() == [7, 4]
    assert q["num_turns"].tolist() == [2]
    assert p["reward"][:, 0].tolist() == [*REWARDS["a"] * 2, REWARDS["a"][0]]
    assert p["reward"][3:, 1].tolist() == REWARDS["b"] * 2
    assert q["reward"][:, 0].tolist() == [0] * 5 + REWARDS["c"] * 2
    assert p["valid"][:, 1].tolist() == [False] * 3 + [True] * 4
    assert p["truncated"].T.tolist() == [[False, False, True] * 2 + [False], [False] * 4 + [True, False, True]]
    assert q["terminated"][:, 0].tolist() == [False] * 5 + [True] * 2
    assert not p["terminated"].any()
    assert not q["truncated"].any()
    assert p["obs"][:, 0, 0].tolist() == [0, 2, 4, 0, 2, 4, 0]
    assert p["obs"][3:, 1, 0].tolist() == [1, 5] * 2
    assert p["final_obs"].tolist() == [[6, 0], [6, 1], [6, 0], [6, 1]]  # in the order of the rows
    assert sorted(p["episode_return"].tolist()) == [RETURNS["a"]] * 2 + [RETURNS["b"]] * 2
    assert sorted(p["episode_length"].tolist()) == [2, 2, 3, 3]
    assert q["episode_return"].tolist() == [RETURNS["c"]] * 2
    assert p["agent"].tolist() == [0, 1]


@pytest.mark.parametrize("num_steps", [1, 2, 4, 5])
def test_steps_are_complete_when_they_are_recorded(num_steps: int) -> None:
    collector = scripted(num_steps, num_envs=2)
    fragments = [collector.fragment(number) for number in range(12)]
    for policy, agents in (("p", "ab"), ("q", "c")):
        batches = [batch[policy] for batch in fragments]
        for slot in range(2 * len(agents)):
            agent = agents[slot % len(agents)]
            steps = steps_of(batches, slot)
            num = len(steps["reward"])
            assert num
            assert steps["reward"].tolist() == (REWARDS[agent] * num)[:num]
            for before, after in pairwise(batches):
                own = np.flatnonzero(after["valid"][:, slot])
                ends = before["valid"][-1, slot] and (before["terminated"] | before["truncated"])[-1, slot]
                if len(own) and before["valid"][-1, slot] and not ends:
                    # What a fragment bootstraps from is the observation that the next one begins with.
                    assert before["last_obs"][slot].tolist() == after["obs"][own[0], slot].tolist()
        assert all((batch["num_turns"] == batch["valid"].sum(0)).all() for batch in batches)
    assert all(max(batch["num_turns"].max() for batch in item.values()) == num_steps for item in fragments)


def test_a_policy_acts_once_for_all_games_in_which_it_has_the_turn() -> None:
    collector = game(TIC_TAC_TOE, 5, 8, lambda agent: agent)
    sizes: dict[str, list[int]] = {"player_1": [], "player_2": []}
    for name, rows in collector.rows.items():

        def counting(*arguments: Any, policy: Policy = rows.policy, sizes: list[int] = sizes[name]) -> Any:
            actor = Policy.acting(policy, *arguments)

            def act(obs: Any, state: Any) -> Any:
                sizes.append(len(obs["action_mask"]))
                return actor(obs, state)

            return act

        rows.policy.acting = counting  # type: ignore[method-assign]
    batches = collector.fragment()
    num_open = {name: int(collector.rows[name].open.sum()) for name in sizes}
    for name, own in sizes.items():
        assert sum(own) == batches[name]["valid"].sum() + num_open[name]
        assert max(own) == 5
        assert own[0] == 5  # all games begin with the first player
    assert len(sizes["player_1"]) < sum(sizes["player_1"]) / 2


def test_an_agent_that_is_removed_without_a_last_turn_is_an_error() -> None:
    with pytest.raises(EnvironmentFailed, match="c was removed without a last turn"):
        scripted(6, remove_silently=True).fragment()


def test_a_failed_episode_is_dropped_and_truncated_after_its_last_step() -> None:
    collector = scripted(6, max_failures=1, fail_at=5, fail_in=[1])
    p, q = collector.fragment().values()
    # The second episode fails in its fifth action, before `a` has its reward, and before the second turn of `b`.
    assert p["reward"][:, 0].tolist() == [*REWARDS["a"], *REWARDS["a"][:2], REWARDS["a"][0]]
    assert p["truncated"][:, 0].tolist() == [False, False, True, False, True, False]
    assert p["reward"][-2:, 1].tolist() == REWARDS["b"]
    assert p["final_obs"].tolist() == [[6, 0], [4, 0], [6, 1]]  # the second is what the failed action was for
    assert p["episode_return"].tolist() == [RETURNS["a"], RETURNS["b"]]
    assert p["episode_lost"].tolist() == q["episode_lost"].tolist() == [4]
    assert "restarted" not in p


def test_an_episode_that_fails_in_a_later_fragment_is_restarted() -> None:
    collector = scripted(2, max_failures=1, fail_at=5, fail_in=[0])
    collector.fragment(0)
    p = collector.fragment(1)["p"]
    assert p["restarted"].tolist() == [True, False]  # no step of `b` was recorded
    assert p["reward"][:, 0].tolist() == REWARDS["a"][:2]
    assert not p["truncated"].any()


def test_failures_beyond_the_budget_raise() -> None:
    with pytest.raises(EnvironmentFailed, match="the board fell over") as raised:
        scripted(6, max_failures=2, fail_at=2, fail_in=range(100)).fragment()
    assert raised.value.num_failures == 3
    assert "environment 0 of 1, episode 0, step 1 of its episode" in raised.value.place
    with pytest.raises(EnvironmentFailed, match="gave a a reward of nan"):
        scripted(6, nan=True).fragment()


class Memory(nn.Module):
    """A recurrent network with a start state of its own."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(6))
        size = int(np.prod(observation_space.shape))
        self.cell, self.head = nn.GRUCell(size, 6), nn.Linear(6, int(action_space.n))

    def initial_state(self, num: int) -> dict[str, Tensor]:
        return {"memory": self.start.expand(num, -1)}

    def forward(self, obs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        memory = self.cell(obs.float().reshape(len(obs), -1), state["memory"])
        return self.head(memory), {"memory": memory}


def check_states(policy: Policy, before: Batch, after: Batch) -> None:
    """Check that the steps of a fragment lead from its recurrent state to that of the next fragment."""
    with torch.inference_mode():
        initial = policy.initial_state(1)["memory"]
        for slot in range(before["valid"].shape[1]):
            memory = torch.from_numpy(before["state"]["memory"][slot : slot + 1])
            for row in np.flatnonzero(before["valid"][:, slot]):
                obs = tree_map(lambda part, row=row, slot=slot: torch.from_numpy(part[row, slot][None]), before["obs"])
                memory = policy(obs, {"memory": memory})[1]["memory"]
                if before["terminated"][row, slot] or before["truncated"][row, slot]:
                    memory = initial
            np.testing.assert_allclose(memory.numpy()[0], after["state"]["memory"][slot], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("env", [TIC_TAC_TOE, "pettingzoo.classic.rps_v2:env", "mpe2.simple_spread_v3"])
def test_the_recurrent_state_of_a_fragment_is_that_before_its_first_step(env: str) -> None:
    collector = game(env, 2, 9, lambda _: "both", network=Memory)
    policy = collector.rows["both"].policy
    fragments = [collector.fragment(number)["both"] for number in range(4)]
    for before, after in pairwise(fragments):
        check_states(policy, before, after)
    assert fragments[1]["state"]["memory"].std(0).max() > 0.01
