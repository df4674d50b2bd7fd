"""Networks of a user's own: how they are called, what fits which part, and what is refused before training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import Spaces, build_agent
from raceway.agents.builders import actor, actor_critic, squashed_actor_and_critics
from raceway.agents.network_checks import example_rows
from raceway.agents.networks import Encoder
from raceway.errors import ConfigError
from tests.example_agents import agent_settings, example_actor, example_actor_critic

OBS = spaces.Box(-1, 1, (2, 3), np.float32)
DISCRETE = spaces.Discrete(2)
BOX = spaces.Box(-1, 1, (2,), np.float32)
SMALL_IMAGE = spaces.Box(0, 255, (7, 7, 3), np.uint8)
DICT = spaces.Dict(a=spaces.Box(-9, 9, (2,), np.float32), b=spaces.Discrete(3), c=spaces.Tuple([OBS]))


class Rows(nn.Module):
    """Flattens first, as CleanRL's networks do, and insists on [N, ...]."""

    def __init__(self, observation_space: spaces.Space, outputs: int) -> None:
        super().__init__()
        self.shape = observation_space.shape
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(self.shape)), outputs))

    def forward(self, obs: Tensor) -> Tensor:
        assert obs.shape[1:] == self.shape
        return self.layers(obs.float())


def actor_alone(observation_space: spaces.Space, action_space: spaces.Space) -> nn.Module:
    return Rows(observation_space, 2)


def with_critic(observation_space: spaces.Space, action_space: spaces.Space) -> tuple[nn.Module, nn.Module]:
    return Rows(observation_space, 2), Rows(observation_space, 1)


@pytest.mark.parametrize("network", [actor_alone, with_critic])
@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_networks_are_called_with_rows(network: Callable[..., Any], action_space: spaces.Space) -> None:
    agent = example_actor_critic(OBS, action_space, network)
    fragment = torch.randn(4, 5, 2, 3)
    params, values = agent.evaluate({"obs": fragment})
    assert params.shape[:2] == values.shape == (4, 5)
    rows = agent.evaluate({"obs": fragment.flatten(0, 1)})
    torch.testing.assert_close(params.flatten(0, 1), rows[0])
    torch.testing.assert_close(values.flatten(), rows[1])


@pytest.mark.parametrize("make", [actor, actor_critic])
@pytest.mark.parametrize("network", [actor_alone, with_critic])
def test_the_built_in_network_is_not_built(make: Any, network: Any) -> None:
    """Images of 7 x 7 are too small for its convolutions."""
    if make is actor and network is with_critic:
        with pytest.raises(ConfigError, match="returned 2 networks; this algorithm takes an actor alone"):
            build_agent(make, Spaces(SMALL_IMAGE, DISCRETE), agent_settings(network))
        return
    agent = build_agent(make, Spaces(SMALL_IMAGE, DISCRETE), agent_settings(network))
    encoders = [module for module in agent.modules() if isinstance(module, Encoder)]
    assert len(encoders) == (make is actor_critic and network is actor_alone)
    for encoder in encoders:  # of the critic that the function does not return
        assert encoder(torch.full((1, 7, 7, 3), 255, dtype=torch.uint8)).max() == 1


@pytest.mark.parametrize(
    ("critic", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), r"part 'critic' returned \(3, 2\) .* values need \(3, 1\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 1)), r"part 'critic' failed on 3 rows of shape \(3, 2, 3\)"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(18, 1)), r"part 'critic' returned \(1,\) for 3 observations"),
    ],
)
def test_a_critic_that_does_not_fit(critic: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        example_actor_critic(OBS, DISCRETE, lambda *_: (Rows(OBS, 2), critic))


class OwnMemory(Rows):
    """Remembers its last observations by itself."""

    last: Tensor | float = 0.0

    def forward(self, obs: Tensor) -> Tensor:
        outputs = super().forward(obs) + self.last
        self.last = outputs.detach()
        return outputs


class OverRows(nn.Module):
    """Takes the rows of a batch for the steps of a sequence."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 2)

    def forward(self, obs: Tensor) -> Tensor:
        return self.lstm(obs.flatten(1))[0]


class OverFrames(OverRows):
    """Takes the first dimension of an observation for the steps of a sequence, which is no memory."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 2, batch_first=True)

    def forward(self, obs: Tensor) -> Tensor:
        return self.lstm(obs)[0][:, -1]


class Noisy(Rows):
    """Adds noise."""

    def forward(self, obs: Tensor) -> Tensor:
        outputs = super().forward(obs)
        return outputs + torch.randn_like(outputs)


class Recurrent(nn.Module):
    """A recurrent network by the contract."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.cell = nn.GRUCell(6, 2)

    def initial_state(self, num: int) -> dict[str, Tensor]:
        return {"hidden": torch.zeros(num, 2)}

    def forward(self, obs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.cell(obs.flatten(1), state["hidden"])
        return hidden, {"hidden": hidden}


class OneState(Recurrent):
    """Has one state for all rows."""

    def initial_state(self, num: int) -> dict[str, Tensor]:
        return {"hidden": torch.zeros(1, 2)}

    def forward(self, obs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return super().forward(obs, {"hidden": state["hidden"].expand(len(obs), 2)})


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda *_: OwnMemory(OBS, 2), r"called again .* a memory that no episode resets.*initial_state"),
        (OverRows, r"part 'actor' mixes its rows.*initial_state"),
        (OneState, r"both need a first dimension of 3"),
        (lambda *_: (Rows(OBS, 2), Recurrent()), "a recurrent critic would be trained without its memory"),
    ],
)
def test_a_memory_that_would_not_be_trained_is_refused(network: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        example_actor_critic(OBS, DISCRETE, network)


@pytest.mark.parametrize("network", [OverFrames, lambda *_: Noisy(OBS, 2), Recurrent])
def test_sequences_within_an_observation_noise_and_recurrence_are_allowed(network: Any) -> None:
    assert example_actor(OBS, DISCRETE, network).actor.recurrent == (network is Recurrent)


def test_trying_a_network_does_not_change_it() -> None:
    def network(*_: Any) -> nn.Module:
        frozen = nn.BatchNorm1d(6).eval()
        return nn.Sequential(nn.Flatten(), frozen, nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2))

    modules = list(example_actor(OBS, DISCRETE, network).actor.network)
    assert [module.training for module in modules] == [True, False, True, True, True]
    assert not modules[2].running_mean.any()


# Critics of actions.


class QValue(nn.Module):
    """A critic of observations and actions."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(8, outputs)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        assert obs.ndim == 3
        assert action.ndim == 2
        return self.layer(torch.cat([obs.flatten(1), action], -1))


@pytest.mark.parametrize("num", [0, 1, 2, 3])
def test_critics_of_actions(num: int) -> None:
    def network(*_: Any) -> list[nn.Module]:
        return [Rows(OBS, 4), *(QValue() for _ in range(num))]

    policy, critics = squashed_actor_and_critics(Spaces(OBS, BOX), agent_settings(network))
    obs, action = torch.randn(5, 2, 3), torch.randn(5, 2)
    q_values = critics(obs, action)
    assert q_values.shape == (num or 2, 5)
    assert ("hidden" in policy.unused_settings) == (num > 0)
    if num:
        torch.testing.assert_close(q_values[-1], critics.members[-1](obs, action)[:, 0])


def test_a_critic_of_actions_that_does_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"'critics \(2 of 2\)' returned \(3, 2\) .* values need \(3, 1\)"):
        squashed_actor_and_critics(
            Spaces(OBS, BOX), agent_settings(lambda *_: (Rows(OBS, 4), QValue(), QValue(outputs=2)))
        )


def test_a_squashed_actor_may_return_means_only() -> None:
    policy, _ = squashed_actor_and_critics(Spaces(OBS, BOX), agent_settings(lambda *_: Rows(OBS, 2)))
    assert policy.log_std is not None
    action, log_prob = policy.distribution.sample_with_log_prob(policy(torch.randn(5, 2, 3), {})[0], torch.Generator())
    log_prob.sum().backward()
    assert action.shape == (5, 2)
    assert policy.log_std.grad is not None


# Example observations.


@pytest.mark.parametrize(
    "space",
    [
        OBS, SMALL_IMAGE, DICT, spaces.MultiBinary(3), spaces.MultiDiscrete([2, 5], start=[1, 7]),
        spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(5, 6, (2,)), spaces.Box(-6, -5, (2,)),
        spaces.Box(-3e38, 3e38, (2,)), spaces.Discrete(4, start=-2),
    ],
    ids=str,
)  # fmt: skip
def test_example_observations_are_of_their_space(space: spaces.Space) -> None:
    rows = example_rows(space, 8)
    if space is DICT:
        rows = {**rows, "c": [rows["c"]["0"]]}
    for index in range(8):
        row = {
            "a": rows["a"][index].numpy(), "b": int(rows["b"][index]), "c": (rows["c"][0][index].numpy(),)
        } if space is DICT else rows[index].numpy()  # fmt: skip
        assert space.contains(row), row
    if space is not DICT:
        assert len(np.unique(rows.flatten(1).numpy() if rows.ndim > 1 else rows.numpy(), axis=0)) > 2


# Normalised observations.


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_parts_of_observations_are_normalised(network: str) -> None:
    agent = example_actor_critic(DICT, DISCRETE, network, normalise_obs=True)
    random = np.random.default_rng(0)
    obs = {
        "a": torch.from_numpy(random.normal(5, 2, (40, 2)).astype(np.float32)),
        "b": torch.from_numpy(random.integers(0, 3, 40)),
        "c": {"0": torch.from_numpy(random.normal(-3, 0.1, (40, 2, 3)).astype(np.float32))},
    }
    agent.observe({"obs": obs})
    encoder = next(module for module in agent.modules() if isinstance(module, Encoder))
    assert encoder.normalises
    expected = [(part - part.mean(0)) / part.std(0, correction=0) for part in (obs["a"], obs["c"]["0"].flatten(1))]
    for grad in (True, False):  # in torch, and in numpy
        with torch.set_grad_enabled(grad):
            encoded = encoder(obs)
        torch.testing.assert_close(encoded[:, :2], expected[0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(encoded[:, 5:], expected[1], rtol=1e-3, atol=1e-3)
        assert encoded[:, 2:5].sum(-1).eq(1).all()
    assert {name.rpartition(".")[2] for name in agent.weights() if "normaliser" in name} == {"mean", "var", "count"}
