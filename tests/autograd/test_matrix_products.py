"""Products of large layers by oneDNN equal those of numpy, to float32 rounding, and so do networks that use them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from raceway.autograd import matrix_products as products
from raceway.autograd.ensembles import Ensemble
from raceway.autograd.fast_paths import use_fast_paths
from raceway.autograd.layers import ForwardPass, Layers
from raceway.autograd.tape import Tape, use_tape

random = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return random.standard_normal(shape, np.float32)


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


def test_torch_has_the_operator_here() -> None:
    assert products._operator is not None, "large layers are computed by numpy, at half of the speed"


def test_which_networks_are_large() -> None:
    small, large = array(64, 64), array(256, 256)
    assert products.is_large(64, [small, large])
    assert not products.is_large(64, [small])
    assert not products.is_large(16, [large]), "few rows are faster in numpy"
    assert not products.is_large(1001, [large]), "the batches of whole episodes have another size every time"


@pytest.mark.parametrize("activation", ["relu", "tanh", "none"])
@pytest.mark.parametrize("outputs", [1, 7, 64])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_products_equal_those_of_numpy(activation: str, outputs: int, transposed: bool) -> None:
    """With weights that are stored by outputs, as in linear layers, and by inputs, as in ensembles."""
    x, bias, gradient = array(40, 23), array(outputs), array(40, outputs)
    weight = array(23, outputs).T if transposed else array(outputs, 23)
    results = []
    for large in (True, False):
        output = products.linear(x, weight, bias, activation, large)
        flow = products.activation_gradient(gradient, output, activation)
        passes = products.weight_gradient(flow, x, large), products.input_gradient(flow, weight, large)
        results.append((output, *passes, products.bias_gradient(flow)))
    for actual, expected in zip(*results, strict=True):
        assert actual.shape == expected.shape
        close(actual, expected)


def large_mlp() -> Layers:
    torch.manual_seed(0)
    return Layers(nn.Identity(), nn.Linear(9, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 3))


def large_ensemble() -> Ensemble:
    torch.manual_seed(0)
    return Ensemble(2, [9, 256, 256])


@pytest.mark.parametrize("shape", [(48,), (4, 16)], ids=str)
def test_gradients_of_a_large_network_equal_those_of_torch(shape: tuple[int, ...]) -> None:
    network, x = large_mlp(), torch.from_numpy(array(*shape, 9))
    network(x).square().mean().backward()
    expected = [parameter.grad.numpy().copy() for parameter in network.parameters()]  # type: ignore[union-attr]
    network.zero_grad(set_to_none=True)
    tape = Tape()
    with use_tape(tape):
        output = network(x)
        assert output.shape == (*shape, 3)
        value = output.square().mean()
    tape.backward(value)
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        close(parameter.grad.numpy(), gradient)  # type: ignore[union-attr]


def test_blocks_of_very_large_layers_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, x = nn.Linear(256, 256), torch.from_numpy(array(80, 256))
    whole = ForwardPass(x, [linear], ["relu"])
    monkeypatch.setattr("raceway.autograd.layers._MIN_BLOCK_WEIGHTS", 1000)
    monkeypatch.setattr("raceway.autograd.layers._BLOCK_ROWS", 32)
    blocks = ForwardPass(x, [linear], ["relu"])
    assert (len(whole.blocks), len(blocks.blocks)) == (1, 3)
    close(blocks.output, whole.output)


@pytest.mark.parametrize("trained", [True, False])
def test_gradients_of_the_minimum_of_an_ensemble_equal_those_of_torch(trained: bool) -> None:
    """A member that is the minimum of some rows only has a gradient for these rows."""
    ensemble, obs, action = large_ensemble(), torch.from_numpy(array(64, 6)), array(64, 3)
    ensemble.requires_grad_(trained)
    results = []
    for enabled in (True, False):
        ensemble.zero_grad(set_to_none=True)
        tape = Tape()
        with use_fast_paths(enabled), use_tape(tape):
            recorded = tape.record(action.copy(), lambda gradient: None)
            leaf = recorded if enabled else torch.from_numpy(action.copy()).requires_grad_()
            value = ensemble([obs, leaf]).amin(0).square().mean()
            tape.backward(value)
        assert leaf.grad is not None
        parameters = [parameter.grad for parameter in ensemble.parameters() if parameter.grad is not None]
        results.append([leaf.grad.numpy().copy(), *(gradient.numpy().copy() for gradient in parameters)])
    assert len(results[0]) == len(results[1]) == (7 if trained else 1)
    for actual, expected in zip(*results, strict=True):
        close(actual, expected)


def test_a_member_that_is_never_the_minimum_has_no_gradient() -> None:
    ensemble, action = large_ensemble().requires_grad_(False), array(64, 3)
    last_bias: torch.Tensor = ensemble.layers[-1].bias  # type: ignore[assignment]
    last_bias[1] += 100
    tape = Tape()
    with use_tape(tape):
        leaf = tape.record(action, lambda gradient: None)
        value = ensemble([torch.from_numpy(array(64, 6)), leaf]).amin(0).mean()
    tape.backward(value)
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0, "that of the other member"
