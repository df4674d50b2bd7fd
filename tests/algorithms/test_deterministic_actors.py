"""TD3, DDPG and Ape-X DPG: the policy, its noise, the losses by hand, and which part each objective trains."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from raceway.agents import Deterministic, GaussianNoise, Spaces, build_agent
from raceway.agents.distributions import SquashedGaussian
from raceway.algorithms import apex_ddpg, ddpg, td3
from raceway.errors import ConfigError
from raceway.learner.learner import Learner
from raceway.learner.objectives import Objective, Target

BOX = spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))
SPACES = Spaces(spaces.Box(-1, 1, (3,)), BOX)


# The policy and its noise.


def test_actions_fill_the_bounds_of_the_space() -> None:
    distribution = Deterministic(BOX)
    outputs = np.float32([[0, 0], [50, -50]])
    np.testing.assert_allclose(distribution.mode(outputs), [[0, 5], [2, 0]], atol=1e-5)
    np.testing.assert_array_equal(distribution.sample(outputs, np.random.default_rng(0)), distribution.mode(outputs))
    torch.testing.assert_close(distribution.best_actions(torch.from_numpy(outputs)), torch.tensor([[0.0, 5], [2, 0]]))
    # noise is a share of half the range: 0.5 of 2, and of 5; and is clipped to the bounds
    noisy = distribution.actions(torch.zeros(1, 2), torch.tensor([[0.5, 3.0]]))
    torch.testing.assert_close(noisy, torch.tensor([[1.0, 10.0]]))
    with pytest.raises(ConfigError, match="finite bounds"):
        Deterministic(spaces.Box(-np.inf, np.inf, (1,)))


def test_noise_has_the_deviation_of_its_slot_and_stays_in_the_bounds() -> None:
    explorer = GaussianNoise([0.0, 0.1, 5.0])
    actions = np.stack(
        [
            explorer.choose(Deterministic(BOX), np.zeros((3, 2), np.float32), np.random.default_rng(i))
            for i in range(4000)
        ]
    )
    np.testing.assert_array_equal(actions[:, 0], np.broadcast_to(np.float32([0, 5]), (4000, 2)))
    np.testing.assert_allclose(actions[:, 1].std(0), [0.2, 0.5], rtol=0.05)
    assert (actions >= BOX.low).all()
    assert (actions <= BOX.high).all()
    assert (actions[:, 2] == BOX.high).any()
    with pytest.raises(ConfigError, match="deterministic policy"):
        explorer.choose(SquashedGaussian(BOX), np.zeros((3, 4), np.float32), np.random.default_rng(0))


# The losses, with critics whose outputs are constants and a target policy that outputs zeros.


def fixed_agent(q: list[float], target_q: list[float]) -> Any:
    seen: list[torch.Tensor] = []

    def actor(obs: Any, state: Any) -> Any:
        return torch.zeros(len(obs), 2), state

    def constant(values: list[float]) -> Any:
        def critics(obs: Any, action: torch.Tensor, num: int | None = None) -> torch.Tensor:
            seen.append(action)
            return torch.tensor(values)[:num, None].expand(len(values[:num]), len(obs))

        return critics

    actor.distribution = Deterministic(BOX)  # type: ignore[attr-defined]
    target = SimpleNamespace(actor=actor, critics=constant(target_q), critic=constant(target_q))
    return SimpleNamespace(actor=actor, critics=constant(q), critic=constant(q), target=target, seen=seen)


def example_batch() -> Any:
    return {
        "obs": torch.zeros(2, 3), "next_obs": torch.zeros(2, 3), "action": torch.zeros(2, 2),
        "reward": torch.tensor([1.0, 0.0]), "discount": torch.tensor([0.5, 0.0]),
    }  # fmt: skip


def test_losses_of_td3_by_hand() -> None:
    agent = fixed_agent(q=[1.0, 2.0], target_q=[3.0, 5.0])
    random = torch.Generator().manual_seed(0)
    # targets: 1 + 0.5 min(3, 5) = 2.5, and 0 after termination
    expected = np.mean([(1 - 2.5) ** 2 + (2 - 2.5) ** 2, 1.0**2 + 2.0**2])
    loss, metrics = td3.critics_loss(agent, example_batch(), noise=0.2, limit=0.5, random=random)
    assert float(loss) == pytest.approx(expected)
    assert float(metrics["q_values"]) == 1.5
    noise = (torch.randn((2, 2), generator=torch.Generator().manual_seed(0)) * 0.2).clamp(-0.5, 0.5)
    torch.testing.assert_close(agent.seen[0], Deterministic(BOX).actions(torch.zeros(2, 2), noise))
    assert float(td3.actor_loss(agent, example_batch())[0]) == -1.0  # of the first critic alone


def test_noise_of_the_targets_is_clipped() -> None:
    agent = fixed_agent(q=[0.0, 0.0], target_q=[0.0, 0.0])
    td3.critics_loss(agent, example_batch(), noise=100.0, limit=0.25, random=torch.Generator().manual_seed(0))
    assert agent.seen[0][:, 0].abs().tolist() == [0.5, 0.5]  # 0.25 of half the range, 2


def test_losses_of_ddpg_by_hand() -> None:
    agent = fixed_agent(q=[1.0], target_q=[3.0])
    # targets: 1 + 0.5 · 3 = 2.5, and 0 after termination
    assert float(ddpg.critic_loss(agent, example_batch())[0]) == pytest.approx(((1 - 2.5) ** 2 + 1) / 2)
    assert float(ddpg.actor_loss(agent, example_batch())[0]) == -1.0


def test_losses_of_apex_ddpg_by_hand() -> None:
    agent = fixed_agent(q=[1.0], target_q=[3.0])
    batch = {**example_batch(), "weight": torch.tensor([1.0, 0.5])}
    # targets as for DDPG, errors 1 - 2.5 and 1 - 0, of which the second counts half
    output = apex_ddpg.critic_loss(agent, batch)
    assert float(output.value) == pytest.approx((1.5**2 + 0.5 * 1**2) / 2)
    torch.testing.assert_close(output.priorities, torch.tensor([1.5, 1.0]))  # not weighted
    assert float(apex_ddpg.actor_loss(agent, batch)[0]) == -1.0


def test_environments_of_apex_ddpg_have_noise_of_their_own_over_all_shards() -> None:
    explorer = apex_ddpg.explorer(SPACES, apex_ddpg.Config(num_envs=8, noise=0.5, learning_starts=80))
    np.testing.assert_allclose(explorer.knobs["noise"], 0.5 ** np.arange(1.0, 9), rtol=1e-5)
    second_shard = explorer.for_slots(4, first=4)
    outputs, random = np.zeros((4, 2), np.float32), np.random.default_rng(0)
    actions = np.stack([second_shard.choose(Deterministic(BOX), outputs, random) for _ in range(4000)])
    np.testing.assert_allclose(actions.std(0)[:, 0], 2 * 0.5 ** np.arange(5.0, 9), rtol=0.05)  # half the range is 2
    assert explorer.choose_without_outputs(9, 4, random) is not None  # 80 random steps are 10 of each environment
    assert explorer.choose_without_outputs(10, 4, random) is None


# Training.

OBJECTIVES: dict[str, dict[str, Objective]] = {
    "td3": {
        "critics": Objective(loss=partial(td3.critics_loss, noise=0.2, limit=0.5)),
        "actor": Objective(loss=td3.actor_loss),
    },
    "ddpg": {"critic": Objective(loss=ddpg.critic_loss), "actor": Objective(loss=ddpg.actor_loss)},
    "apex_ddpg": {"critic": Objective(loss=apex_ddpg.critic_loss), "actor": Objective(loss=apex_ddpg.actor_loss)},
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in OBJECTIVES.items() for part in parts])
def test_an_objective_trains_its_own_part_only(name: str, part: str, compiled: bool) -> None:
    module = {"td3": td3, "ddpg": ddpg, "apex_ddpg": apex_ddpg}[name]
    agent = build_agent(module.agent, SPACES, module.Config(hidden=(8,)), 0)
    learner = Learner(agent, 1e-2, seed=1, compiled=compiled)
    before = {key: value.detach().clone() for key, value in agent.named_parameters()}
    random = np.random.default_rng(0)
    columns = {"obs": (12, 3), "next_obs": (12, 3), "action": (12, 2), "reward": (12,), "discount": (12,)}
    batch = {key: random.normal(size=shape).astype(np.float32) for key, shape in columns.items()}
    batch["weight"] = np.ones(12, np.float32)
    parts = tuple(OBJECTIVES[name])
    learner.train({part: OBJECTIVES[name][part]}, batch, targets=[Target(parts, tau=0.1)])
    for key, value in agent.named_parameters():
        assert torch.equal(value, before[key]) != key.startswith(f"{part}."), key


# Networks of a user's own.


class Critic(nn.Module):
    """Returns the sum of the observation and of the action."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.scale * (obs.sum(-1, keepdim=True) + action.sum(-1, keepdim=True))


@pytest.mark.parametrize("module", [ddpg, apex_ddpg])
def test_a_second_critic_that_would_not_be_trained_is_refused(module: Any) -> None:
    def network(num: int) -> Any:
        return lambda *_: (nn.Linear(3, 2), *(Critic() for _ in range(num)))

    assert len(build_agent(module.agent, SPACES, module.Config(network=network(1)), 0).critic) == 1  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"returned 3 networks; this algorithm takes an actor and at most 1 critic"):
        build_agent(module.agent, SPACES, module.Config(network=network(2)), 0)
    assert len(build_agent(td3.agent, SPACES, td3.Config(network=network(2)), 0).critics) == 2  # type: ignore[attr-defined]
