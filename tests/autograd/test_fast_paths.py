"""The fast paths equal torch within float32 rounding, for every layer and distribution, and can be switched off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from raceway.agents import Policy, Spaces
from raceway.agents.builders import (
    actor_and_critics,
    deterministic_actor,
    deterministic_actor_and_critics,
    squashed_actor_and_critics,
)
from raceway.agents.distributions import Bounded, BoundedGaussian, Distribution, distribution_for
from raceway.agents.networks import ACTIVATIONS, Normaliser
from raceway.agents.numpy_inference import make_numpy_actor
from raceway.agents.q_ensembles import QEnsemble
from raceway.autograd import layers
from raceway.autograd.fast_paths import VARIABLE, fast_paths_enabled, use_fast_paths
from raceway.autograd.tape import Tape, can_use_numpy, tape_for, use_tape
from raceway.learner.adam import Adam
from raceway.learner.optimisers import TorchAdam, make_optimiser
from raceway.training.train import train
from tests.example_agents import agent_settings, example_actor_critic

BOX = spaces.Box(-2, 3, (2,), np.float32)
ACTION_SPACES = {
    "discrete": spaces.Discrete(4, start=3), "multidiscrete": spaces.MultiDiscrete([2, 3]), "box": BOX,
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
}  # fmt: skip
OBS = spaces.Box(-5, 5, (3,), np.float32)
OTHER_POLICIES: dict[str, Callable[[Spaces, Any], Policy]] = {
    "squashed": lambda spaces, cfg: squashed_actor_and_critics(spaces, cfg)[0],
    "deterministic": lambda spaces, cfg: deterministic_actor_and_critics(spaces, cfg)[0],
    "direct": lambda spaces, cfg: deterministic_actor(spaces, cfg).actor,
}
"""Policies whose distribution is not that of `distribution_for`."""
few = settings(max_examples=12, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)
widths = st.lists(st.integers(1, 9), max_size=3).map(tuple)


def gradients(module: nn.Module, loss: Callable[[], Tensor], enabled: bool) -> tuple[float, list[np.ndarray]]:
    """The loss and the gradients of a module, with the fast paths or without."""
    module.zero_grad(set_to_none=True)
    tape = Tape()
    with use_fast_paths(enabled), use_tape(tape):
        value = loss()
        assert bool(tape.steps) == enabled, "the fast path must be the one that is tested"
        tape.backward(value)
    zeros = (torch.zeros_like(each) if each.grad is None else each.grad for each in module.parameters())
    return float(value.detach()), [gradient.numpy().copy() for gradient in zeros]


def assert_same(module: nn.Module, loss: Callable[[], Tensor]) -> None:
    fast, slow = (gradients(module, loss, enabled) for enabled in (True, False))
    np.testing.assert_allclose(fast[0], slow[0], rtol=1e-4, atol=1e-4)
    for actual, expected in zip(fast[1], slow[1], strict=True):
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5 * scale)


@few
@given(
    seed=seeds,
    hidden=widths,
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    shared=st.booleans(),
    rows=st.integers(1, 9),
)
@pytest.mark.parametrize("space", sorted(ACTION_SPACES))
def test_layers_and_distributions_on_policy(
    space: str, seed: int, hidden: tuple[int, ...], activation: str, shared: bool, rows: int
) -> None:
    """Linear layers, activations, heads, normalisers, log-probabilities and entropies, as PPO uses them."""
    options = {"activation": activation, "shared_layers": shared, "normalise_obs": True}
    action_space = ACTION_SPACES[space]
    agent = example_actor_critic(OBS, action_space, hidden=hidden, seed=seed, **options)
    action_space.seed(seed % 1000)
    random = torch.Generator().manual_seed(seed)
    obs = 3 * torch.randn(rows, 3, generator=random) + 1
    agent.observe({"obs": obs})
    actions = torch.from_numpy(np.stack([action_space.sample() for _ in range(rows)]))

    def loss() -> Tensor:
        params, values = agent.evaluate({"obs": obs})
        log_prob, entropy = agent.actor.distribution.log_prob_and_entropy(params, actions)
        return (log_prob * values.detach() + 0.3 * entropy).mean() + (values - 1).square().mean()

    assert_same(agent, loss)


@few
@given(seed=seeds, hidden=widths, rows=st.integers(1, 9))
def test_ensembles_and_squashed_samples(seed: int, hidden: tuple[int, ...], rows: int) -> None:
    """Critics on sampled actions, with gradients through the actions, as SAC uses them."""
    torch.manual_seed(seed)
    policy, critics = squashed_actor_and_critics(Spaces(OBS, BOX), agent_settings(hidden=hidden))
    obs = torch.randn(rows, 3)
    both = nn.ModuleList([policy, critics])

    def loss() -> Tensor:
        random = torch.Generator().manual_seed(seed)
        actions, log_prob = policy.distribution.sample_with_log_prob(policy(obs, {})[0], random)
        return (log_prob - critics(obs, actions).amin(0)).mean()

    assert_same(both, loss)


@few
@given(seed=seeds, hidden=widths, rows=st.integers(1, 9), num=st.integers(1, 2))
def test_ensembles_and_deterministic_actions(seed: int, hidden: tuple[int, ...], rows: int, num: int) -> None:
    """Some critics on the actions of a deterministic policy, as TD3 uses them."""
    torch.manual_seed(seed)
    policy, critics = deterministic_actor_and_critics(Spaces(OBS, BOX), agent_settings(hidden=hidden))
    obs, noise = torch.randn(rows, 3), torch.randn(rows, 2)
    both = nn.ModuleList([policy, critics])

    def loss() -> Tensor:
        actions = policy.distribution.actions(policy(obs, {})[0], noise)
        return (critics(obs, actions, num) - critics(obs, noise)[:num]).square().mean()

    assert_same(both, loss)


@few
@given(seed=seeds, hidden=widths, rows=st.integers(1, 9), normalise=st.booleans(), sampled=st.booleans())
@pytest.mark.parametrize("space", ["discrete", "box", "matrix", *OTHER_POLICIES])
def test_acting(space: str, seed: int, hidden: tuple[int, ...], rows: int, normalise: bool, sampled: bool) -> None:
    """The same generator gives the same actions."""
    torch.manual_seed(seed)
    if space in OTHER_POLICIES:
        policy = OTHER_POLICIES[space](Spaces(OBS, BOX), agent_settings(hidden=hidden))
    else:
        agent = example_actor_critic(OBS, ACTION_SPACES[space], hidden=hidden, seed=seed, normalise_obs=normalise)
        agent.observe({"obs": torch.randn(20, 3) * 4})
        policy = agent.actor
    obs = np.random.default_rng(seed).normal(size=(5, rows, 3)).astype(np.float32)
    actions = []
    for enabled in (True, False):
        random = np.random.default_rng(seed) if sampled else None
        with use_fast_paths(enabled):
            act = policy.acting(random)
            assert (type(act).__name__ == "NumpyActor") == enabled
            actions.append([act(step, {})[0] for step in obs])
    np.testing.assert_allclose(np.stack(actions[0]), np.stack(actions[1]), rtol=1e-4, atol=1e-5)


@few
@given(seed=seeds, clipped=st.booleans(), steps=st.integers(1, 5))
def test_adam(seed: int, clipped: bool, steps: int) -> None:
    """Also if one continues from the state of the other."""
    torch.manual_seed(seed)
    networks = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    optimisers: list[Any] = [Adam(networks[0].parameters(), 0.01), TorchAdam(networks[1].parameters(), 0.01)]
    inputs = torch.randn(2 * steps, 5, 3)
    for step, rows in enumerate(inputs):
        for network, optimiser in zip(networks, optimisers, strict=True):
            optimiser.zero_grad()
            network(rows).square().sum().backward()
            if clipped:
                optimiser.clip_grad_norm(0.5)
            optimiser.step()
        if step == steps - 1:
            first, second = (optimiser.state() for optimiser in optimisers)
            optimisers[0].restore(second)
            optimisers[1].restore(first)
    for parameter, expected in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-6)


def test_every_fast_layer_and_distribution_is_tested_above() -> None:
    assert set(layers.ACTIVATIONS) == set(ACTIVATIONS.values())
    tested = {type(distribution_for(space)) for space in ACTION_SPACES.values()}
    tested |= {type(make(Spaces(OBS, BOX), agent_settings()).distribution) for make in OTHER_POLICIES.values()}
    bounded = actor_and_critics(Spaces(OBS, BOX), agent_settings(), BoundedGaussian(BOX))[0]
    assert make_numpy_actor(bounded.network, bounded.distribution, None) is None, "it acts in evaluations only"
    tested.add(BoundedGaussian)
    assert tested == {*Distribution.__subclasses__(), *Bounded.__subclasses__()} - {Bounded}


# Another device, and the switch.


def test_another_device_uses_torch() -> None:
    x = torch.zeros(2, 3, device="meta")
    with use_tape(Tape()):
        assert tape_for(x) is None
    with torch.no_grad():
        assert not can_use_numpy(x)
        assert Normaliser(3).to("meta")(x).device.type == "meta"
        assert QEnsemble(OBS, BOX, (4,)).to("meta")(x, torch.zeros(2, 2, device="meta")).device.type == "meta"
    agent = example_actor_critic(OBS, spaces.Discrete(2), hidden=(4,))
    assert make_numpy_actor(agent.actor.network, agent.actor.distribution, None) is not None
    assert make_numpy_actor(agent.actor.network.to("meta"), agent.actor.distribution, None) is None
    assert type(make_optimiser("adam", [nn.Parameter(x)], 0.1)) is TorchAdam
    assert type(make_optimiser("adam", [nn.Parameter(torch.zeros(2))], 0.1)) is Adam


def test_the_variable_switches_them_off() -> None:
    assert fast_paths_enabled()
    code = "from raceway.autograd.fast_paths import fast_paths_enabled; print(fast_paths_enabled())"
    for value, printed in (("0", "False"), ("1", "True")):
        environment = {**os.environ, VARIABLE: value}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == printed


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("ppo", {"env": "cartpole", "fragment_steps": 16, "num_minibatches": 2, "num_epochs": 2}),
     ("sac", {"env": "Pendulum-v1", "learning_starts": 20, "batch_size": 8, "num_envs": 1})],
)  # fmt: skip
def test_a_training_is_nearly_the_same_without_them(algorithm: str, options: dict[str, Any], tmp_path: Any) -> None:
    """For a few steps, before rounding grows into other actions."""
    common = {"engine": "inline", "num_shards": 1, "progress": False, "hidden": (8,), "total_timesteps": 30}
    settings = {"num_envs": 2, **common, **options}
    weights = []
    for enabled in (True, False):
        with use_fast_paths(enabled):
            weights.append(train(algorithm, run_dir=tmp_path / str(enabled), **settings).policy.weights())
    for name, array in weights[0].items():
        np.testing.assert_allclose(array, weights[1][name], rtol=1e-2, atol=1e-3, err_msg=name)
