"""Ensembles of networks: the numpy passes give what torch's autograd gives."""

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from raceway.autograd.ensembles import Ensemble, dropout_mask
from raceway.autograd.tape import Tape, use_tape


def example(seed: int = 0) -> tuple[Ensemble, Tensor, Tensor]:
    torch.manual_seed(seed)
    return Ensemble(3, [5, 16, 8]), torch.randn(7, 3), torch.randn(7, 2)


def gradients(ensemble: Ensemble, obs: Tensor, action: Tensor, tape: Tape | None) -> list[np.ndarray]:
    """The gradients of the parameters and of the action, which is computed from a leaf on the tape."""
    ensemble.zero_grad(set_to_none=True)
    if tape is None:
        leaf = action.clone().requires_grad_()
        loss = ensemble([obs, leaf]).amin(0).square().sum()
        loss.backward()
    else:
        with use_tape(tape):
            leaf = tape.record(action.numpy().copy(), lambda gradient: None)
            loss = ensemble([obs, leaf]).amin(0).square().sum()
        tape.backward(loss)
    parts = [*ensemble.parameters(), leaf]
    return [part.grad.numpy().copy() for part in parts if part.grad is not None]


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_are_those_of_autograd(threads: int) -> None:
    ensemble, obs, action = example()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected, actual = gradients(ensemble, obs, action, None), gradients(ensemble, obs, action, Tape())
    finally:
        torch.set_num_threads(before)
    assert len(expected) == len(actual) == 7
    for wanted, array in zip(expected, actual, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)


def test_outputs_without_gradients_are_those_of_torch() -> None:
    ensemble, obs, action = example()
    expected = ensemble([obs, action]).detach()
    with torch.no_grad():
        torch.testing.assert_close(ensemble([obs, action]), expected)
    assert expected.shape == (3, 7)


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    ensemble, obs, action = example()
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(gradients(ensemble, obs, action, Tape()))
    torch.set_num_threads(before)
    assert all(np.array_equal(one, two) for one, two in zip(*results, strict=True))


def test_frozen_members_get_no_gradients_and_pass_them_on() -> None:
    ensemble, obs, action = example()
    expected = gradients(ensemble, obs, action, None)[-1]
    ensemble.requires_grad_(False)
    (only,) = gradients(ensemble, obs, action, Tape())
    np.testing.assert_allclose(only, expected, rtol=1e-5, atol=1e-6)


def test_an_ensemble_with_threads_can_be_pickled() -> None:
    ensemble, obs, action = example()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad():
            expected = ensemble([obs, action])
            torch.testing.assert_close(pickle.loads(pickle.dumps(ensemble))([obs, action]), expected)
    finally:
        torch.set_num_threads(before)


# Chosen members, layer normalisation and dropout.


def by_hand(ensemble: Ensemble, member: int, x: Tensor, masks: list[Tensor] | None = None) -> Tensor:
    """The output of one member, [N], layer by layer."""
    for index, layer in enumerate(ensemble.layers[:-1]):
        x = x @ layer.weight[member] + layer.bias[member]
        if masks is not None:
            x = x * masks[index][:, member]
        if ensemble.norms:
            norm = ensemble.norms[index]
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
            x = x * norm.scale[member] + norm.shift[member]
        x = x.relu()
    return (x @ ensemble.layers[-1].weight[member] + ensemble.layers[-1].bias[member])[:, 0]


def test_chosen_members_are_those_with_the_numbers() -> None:
    ensemble, obs, action = example()
    expected = ensemble([obs, action])[[2, 0]]
    torch.testing.assert_close(ensemble([obs, action], members=torch.tensor([2, 0])), expected)


def test_dropout_comes_before_layer_normalisation_before_relu() -> None:
    torch.manual_seed(0)
    ensemble, x = Ensemble(3, [5, 16, 8], layer_norm=True, dropout=0.3), torch.randn(7, 5)
    with torch.no_grad():
        for norm in ensemble.norms:
            norm.scale.uniform_(0.5, 2)
            norm.shift.normal_()
    mask = dropout_mask(7, 3 * (16 + 8), 0.3, torch.Generator().manual_seed(4))
    masks = [mask[:, :48].reshape(7, 3, 16), mask[:, 48:].reshape(7, 3, 8)]
    dropped = ensemble([x], random=torch.Generator().manual_seed(4))
    plain = ensemble([x])
    for member in range(3):
        torch.testing.assert_close(dropped[member], by_hand(ensemble, member, x, masks))
        torch.testing.assert_close(plain[member], by_hand(ensemble, member, x))
    some = ensemble([x], members=torch.tensor([1]))
    torch.testing.assert_close(some[0], by_hand(ensemble, 1, x))
    assert not torch.equal(plain, dropped)


def test_without_a_generator_or_a_rate_nothing_is_dropped() -> None:
    torch.manual_seed(0)
    ensemble, x = Ensemble(2, [5, 16], dropout=0.5), torch.randn(7, 5)
    torch.manual_seed(0)
    plain = Ensemble(2, [5, 16])
    torch.testing.assert_close(ensemble([x]), plain([x]))
    torch.testing.assert_close(plain([x], random=torch.Generator()), plain([x]))
    assert not torch.equal(ensemble([x], random=torch.Generator()), plain([x]))


@pytest.mark.parametrize(("rate", "num_units"), [(0.01, 512), (0.5, 20), (0.9, 3)])
def test_units_are_dropped_independently_with_the_rate(rate: float, num_units: int) -> None:
    num_rows = 4000
    mask = dropout_mask(num_rows, num_units, rate, torch.Generator().manual_seed(0))
    assert mask.shape == (num_rows, num_units)
    values = {round(value, 4) for value in mask.unique().tolist()}
    assert values == {0.0, round(1 / (1 - rate), 4)}
    dropped = (mask == 0).double()
    deviation = (rate * (1 - rate) / num_rows) ** 0.5
    assert float((dropped.mean(0) - rate).abs().max()) < 5 * deviation  # for every unit, the first and the last
    assert float(dropped.mean()) == pytest.approx(rate, abs=5 * deviation / num_units**0.5)
    pairs = (dropped[:, 1:] * dropped[:, :-1]).mean()  # neighbours are dropped together with probability rate²
    assert float(pairs) == pytest.approx(rate**2, abs=5 * rate / (num_rows * (num_units - 1)) ** 0.5)
    counts = dropped.sum(1)  # binomial
    assert float(counts.var()) == pytest.approx(num_units * rate * (1 - rate), rel=0.15)
