"""Noisy networks: factorised noise by hand, one for a batch, another for the next, and none in evaluation."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from raceway.agents import NoisyGreedy, Spaces, UniformWarmUp, build_agent, make_policy
from raceway.agents.acting_policy import ActingPolicy
from raceway.agents.distributions import MASKED_LOGIT
from raceway.agents.noisy_networks import NoisyActor, NoisyLinear, with_noise
from raceway.algorithms import find_algorithm
from raceway.errors import ConfigError

BOX, ACTIONS = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
MASKED = spaces.Dict({"observation": BOX, "action_mask": spaces.MultiBinary(3)})
NAMES = pytest.mark.parametrize("name", ["noisy_dqn", "rainbow"])


def agent_of(name: str, obs_space: spaces.Space = BOX, **settings: Any) -> Any:
    algorithm = find_algorithm(name)
    return build_agent(algorithm.agent, Spaces(obs_space, ACTIONS), algorithm.settings(hidden=(16, 8), **settings))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_initial_weights() -> None:
    layer = NoisyLinear(16, 400, sigma=0.5)
    for mean in (layer.weight, layer.bias):
        assert 0.2 < mean.abs().max() <= 0.25  # 1/√16
        assert mean.mean().abs() < 0.03
    for deviation in (layer.weight_sigma, layer.bias_sigma):
        assert (deviation == 0.5 / 4).all()


def test_noise_by_hand() -> None:
    layer = NoisyLinear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(0.5)
        layer.weight_sigma.copy_(torch.tensor([[0.1, 0.2]]))
        layer.bias_sigma.fill_(0.3)
    normal = torch.randn(1, 3, generator=generator())[0].tolist()
    first, second, out = (math.copysign(math.sqrt(abs(z)), z) for z in normal)
    # w = μ + σ f(z_out) f(z_in), b likewise with f(z_out) alone; x = (3, 4).
    expected = (1 + 0.1 * out * first) * 3 + (2 + 0.2 * out * second) * 4 + 0.5 + 0.3 * out
    with with_noise(layer, generator()):
        assert layer(torch.tensor([[3.0, 4.0]])).item() == pytest.approx(expected, rel=1e-5)
    assert layer(torch.tensor([[3.0, 4.0]])).item() == pytest.approx(1 * 3 + 2 * 4 + 0.5)


@NAMES
def test_the_same_noise_within_a_batch_another_in_the_next_and_none_outside(name: str) -> None:
    agent, random = agent_of(name), generator()
    rows = torch.ones(5, 4)
    outputs = []
    for _ in range(2):
        with with_noise(agent, random):
            batch = agent.actor(rows, {})[0]
            again = agent.actor(rows, {})[0]
        torch.testing.assert_close(batch, batch[:1].expand(5, -1))
        assert torch.equal(batch, again)
        outputs.append(batch)
    outputs.append(agent.actor(rows, {})[0])
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])
    assert torch.equal(outputs[2], agent.actor(rows, {})[0])
    agent.make_target(None)
    with with_noise(agent, random):
        assert torch.equal(agent.target.actor(rows, {})[0], outputs[2]), "the target network has its own noise"


@NAMES
def test_noise_is_removed_after_an_error(name: str) -> None:
    agent = agent_of(name)
    with pytest.raises(ZeroDivisionError), with_noise(agent, generator()):
        raise ZeroDivisionError
    assert all(layer.noise is None for layer in agent.modules() if isinstance(layer, NoisyLinear))


@NAMES
def test_a_copy_that_is_made_during_a_training_step_has_no_noise(name: str) -> None:
    agent, rows = agent_of(name), torch.ones(5, 4)
    expected = agent.actor(rows, {})[0]
    with with_noise(agent, generator()):
        copied, pickled = copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))
        assert not torch.equal(agent.actor(rows, {})[0], expected)
    for other in (copied, pickled):
        assert torch.equal(other.actor(rows, {})[0], expected)


# Acting.


@pytest.mark.parametrize("obs_space", [BOX, MASKED], ids=["vectors", "mask"])
@NAMES
def test_acting_samples_noise_for_each_environment_and_step(name: str, obs_space: spaces.Space) -> None:
    policy, num = agent_of(name, obs_space).actor, 6
    vectors = np.ones((num, 4), np.float32)
    mask = np.array([[1, 0, 1]] * num, np.int8)
    obs: Any = {"observation": vectors, "action_mask": mask} if obs_space is MASKED else vectors
    actor = NoisyActor(policy, np.random.default_rng(3))
    outputs = [actor(obs).copy() for _ in range(2)]
    free = [0, 2] if obs_space is MASKED else [0, 1, 2]
    assert obs_space is BOX or (outputs[0][:, 1] == MASKED_LOGIT).all()
    assert len(np.unique(np.concatenate(outputs)[:, free].round(6), axis=0)) == 2 * num, "the same noise occurs twice"
    # The same noise in torch, a column of it for each environment.
    layers = [layer for layer in policy.modules() if isinstance(layer, NoisyLinear)]
    sizes = [sum(layer.weight.shape) for layer in layers]
    normal = np.random.default_rng(3).standard_normal((sum(sizes), num), np.float32)
    rows = []
    for noise in torch.from_numpy(np.sign(normal) * np.sqrt(np.abs(normal))).T:
        for layer, part in zip(layers, noise.split(sizes), strict=True):
            layer.noise = part[None, : layer.weight.shape[1]], part[None, layer.weight.shape[1] :]
        rows.append(policy.network(torch.ones(1, 4)))
    expected = torch.cat(rows).detach().numpy()
    np.testing.assert_allclose(outputs[0][:, free], expected[:, free], rtol=1e-4, atol=1e-4)


@NAMES
def test_only_exploration_is_noisy(name: str) -> None:
    policy, obs = agent_of(name).actor, np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    explore = policy.acting(np.random.default_rng(0), NoisyGreedy())
    greedy, exploring = policy.acting(None)(obs, {})[0], explore(obs, {})[0]
    assert (greedy != exploring).any()
    assert (explore(obs, {})[0] != exploring).any()
    acting = ActingPolicy(policy, BOX, ACTIONS, explorer=NoisyGreedy())
    assert (acting.act(obs) == greedy).all()
    first, second = (acting.act(obs, deterministic=False, seed=1) for _ in range(2))
    assert (first == second).all()
    assert (first != greedy).any()
    allowed = np.tile(np.array([0, 1, 0]), (500, 1))
    assert (acting.act(obs, deterministic=False, action_mask=allowed) == 1).all()


@NAMES
def test_exploration_is_noisy_after_uniformly_random_steps_too(name: str) -> None:
    policy, obs = agent_of(name).actor, np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    act = policy.acting(np.random.default_rng(0), UniformWarmUp(ACTIONS, 1, NoisyGreedy()), first_step=1)
    np.testing.assert_array_equal(act(obs, {})[0], policy.acting(np.random.default_rng(0), NoisyGreedy())(obs, {})[0])


def test_a_network_without_noise_cannot_explore_by_it() -> None:
    with pytest.raises(ConfigError, match="has no noisy layers to explore with"):
        make_policy(BOX, ACTIONS, hidden=(8,)).acting(np.random.default_rng(0), NoisyGreedy())
    network = nn.Sequential(NoisyLinear(4, 3), nn.Softplus())
    assert torch.isfinite(network(torch.ones(1, 4))).all()
