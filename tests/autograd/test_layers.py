"""Plain networks in numpy give the same outputs and gradients as torch."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from raceway.agents import ActorCritic, make_policy
from raceway.agents.distributions import distribution_for
from raceway.agents.networks import mlp
from raceway.autograd.layers import ForwardPass, Layers
from raceway.autograd.tape import Tape, use_tape
from raceway.learner.learner import Learner, backward
from tests.example_agents import example_actor_critic

OBS_SPACE = spaces.Box(-2, 2, (5,), np.float32)
DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (2,), np.float32)


def random_obs(*shape: int) -> Tensor:
    return torch.randn(*shape, 5, generator=torch.Generator().manual_seed(0))


def example_loss(agent: ActorCritic, obs: Tensor) -> Tensor:
    params, values = agent.evaluate({"obs": obs})
    return params.square().mean() + (values - 1).square().mean() + params.sum() * values.mean()


def gradients(agent: ActorCritic, obs: Tensor, tape: Tape | None) -> dict[str, Tensor]:
    agent.zero_grad(set_to_none=True)
    with use_tape(tape):
        value = example_loss(agent, obs)
    if tape is None:
        value.backward()
    else:
        tape.backward(value)
    return {name: parameter.grad.clone() for name, parameter in agent.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize(
    "options", [{}, {"activation": "relu"}, {"shared_layers": True}, {"normalise_obs": True}], ids=str
)
@pytest.mark.parametrize("shape", [(7,), (3, 4)], ids=str)
def test_gradients_equal_those_of_autograd(space: Any, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    agent = example_actor_critic(OBS_SPACE, space, hidden=(8, 6), seed=1, **options)
    obs = random_obs(*shape)
    agent.observe({"obs": random_obs(50)})
    expected = gradients(agent, obs, None)
    tape = Tape()
    actual = gradients(agent, obs, tape)
    assert actual.keys() == expected.keys()
    assert len(actual) >= 8
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, msg=name)
    assert tape.steps == []


@pytest.mark.parametrize("activation", [torch.nn.ReLU, torch.nn.Tanh])
@pytest.mark.parametrize(
    ("shape", "widths"), [((7,), (8, 6)), ((3, 4), (8,)), ((64,), (256, 128)), ((512,), (512, 512))]
)
def test_gradients_of_normalised_layers_equal_those_of_autograd(
    activation: type[torch.nn.Module], shape: tuple[int, ...], widths: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    network = mlp(OBS_SPACE, DISCRETE, widths, activation, layer_norm=True)
    for layer in network:
        if isinstance(layer, torch.nn.LayerNorm):
            torch.nn.init.uniform_(layer.weight, 0.5, 2)
            torch.nn.init.uniform_(layer.bias, -1, 1)

    def gradients(tape: Tape | None) -> list[Tensor]:
        network.zero_grad(set_to_none=True)
        with use_tape(tape):
            value = network(random_obs(*shape)).square().mean()
        (tape.backward if tape else Tensor.backward)(value)
        return [parameter.grad.clone() for parameter in network.parameters()]  # type: ignore[union-attr]

    expected, tape = gradients(None), Tape()
    for actual, gradient in zip(gradients(tape), expected, strict=True):
        torch.testing.assert_close(actual, gradient, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        by_numpy = network(random_obs(*shape))
    torch.testing.assert_close(by_numpy, network(random_obs(*shape)).detach())


def test_outputs_equal_those_of_torch() -> None:
    agent = example_actor_critic(OBS_SPACE, BOX, hidden=(8, 6), seed=1, normalise_obs=True)
    obs = random_obs(9)
    agent.observe({"obs": 3 * random_obs(50) + 1})
    by_torch = agent.evaluate({"obs": obs})  # with gradients and no tape
    assert by_torch[0].grad_fn is not None
    with torch.no_grad():
        by_numpy = agent.evaluate({"obs": obs})
    for actual, expected in zip(by_numpy, by_torch, strict=True):
        torch.testing.assert_close(actual, expected.detach())


def test_gradients_accumulate() -> None:
    agent = example_actor_critic(OBS_SPACE, DISCRETE, seed=1)
    once = gradients(agent, random_obs(4), Tape())
    learner = Learner(agent, 0.0)  # its gradients are views of one vector
    learner.optimiser.zero_grad()
    backward([lambda: example_loss(agent, random_obs(4))] * 2)
    for name, parameter in agent.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * once[name])
    assert learner.optimiser.vectors[0].gradient.abs().sum() > 0


def test_frozen_parameters_get_no_gradient() -> None:
    agent = example_actor_critic(OBS_SPACE, DISCRETE, seed=1)
    agent.actor.network[1].weight.requires_grad_(False)  # type: ignore[index]
    assert "actor.network.1.weight" not in gradients(agent, random_obs(4), Tape())


def test_parameters_that_the_loss_does_not_depend_on_get_no_gradient() -> None:
    agent = example_actor_critic(OBS_SPACE, DISCRETE, seed=1)
    tape = Tape()
    with use_tape(tape):
        params, _ = agent.evaluate({"obs": random_obs(4)})
    tape.backward(params.sum())
    assert all(parameter.grad is None for parameter in agent.critic.parameters())
    assert all(parameter.grad is not None for parameter in agent.actor.network.parameters())


def test_gradients_of_observations_use_autograd() -> None:
    policy = make_policy(OBS_SPACE, DISCRETE, "mlp", (8,), seed=1)
    obs = random_obs(4).requires_grad_()
    tape = Tape()
    with use_tape(tape):
        policy(obs, {})[0].sum().backward()
    assert tape.steps == []
    assert obs.grad is not None


def test_second_derivatives_without_a_tape() -> None:
    policy = make_policy(OBS_SPACE, DISCRETE, "mlp", (8,), seed=1)
    weight = policy.network[1].weight
    with use_tape(Tape()), use_tape(None):
        value = policy(random_obs(4), {})[0].square().sum()
    (first,) = torch.autograd.grad(value, weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight)
    assert second.abs().sum() > 0


def test_a_tape_is_thread_local() -> None:
    policy = make_policy(OBS_SPACE, DISCRETE, "mlp", (8,), seed=1)
    grad_fns: list[Any] = []
    tape = Tape()
    with use_tape(tape):
        other = threading.Thread(target=lambda: grad_fns.append(policy(random_obs(2), {})[0].grad_fn))
        other.start()
        other.join()
    assert grad_fns[0] is not None, "the other thread has no tape"
    assert tape.steps == []


def test_layers_of_other_types_use_torch() -> None:
    layers = Layers(torch.nn.Identity(), torch.nn.Linear(5, 4), torch.nn.Softplus(), torch.nn.Linear(4, 2))
    tape = Tape()
    with use_tape(tape):
        assert layers(random_obs(3)).grad_fn is not None
    assert tape.steps == []


def test_a_forward_pass_leaves_its_input_unchanged() -> None:
    linear = torch.nn.Linear(5, 4)
    x = random_obs(3)
    run = ForwardPass(x, [linear], ["tanh"])
    assert torch.equal(x, random_obs(3))
    assert np.shares_memory(run.passes[0].outputs[0], x.numpy())


@pytest.mark.parametrize("space", [spaces.Discrete(3, start=5), BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("shape", [(7,), (3, 4)], ids=str)
def test_gradients_of_log_probabilities_and_entropy_equal_those_of_autograd(space: Any, shape: tuple[int, ...]) -> None:
    distribution = distribution_for(space)
    params = torch.randn(*shape, distribution.size, generator=torch.Generator().manual_seed(0))
    actions = torch.from_numpy(np.array([space.sample() for _ in range(math.prod(shape))]))
    actions = actions.reshape(*shape, *actions.shape[1:])

    def loss(params: Tensor) -> Tensor:
        log_prob, entropy = distribution.log_prob_and_entropy(params, actions)
        return (log_prob.square() + 0.3 * entropy.exp()).mean() + params.sum()

    expected = params.clone().requires_grad_()
    by_torch = loss(expected)
    by_torch.backward()
    tape, gradients_seen = Tape(), list[np.ndarray]()
    with use_tape(tape):
        leaf = tape.record(params.numpy().copy(), lambda gradient: gradients_seen.append(gradient.copy()))
        on_tape = loss(leaf)
    assert len(tape.steps) == 3
    tape.backward(on_tape)
    torch.testing.assert_close(on_tape, by_torch)
    torch.testing.assert_close(torch.from_numpy(gradients_seen[0]), expected.grad)
