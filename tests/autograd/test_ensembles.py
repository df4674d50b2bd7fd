"""Ensembles of networks: the numpy passes give what torch's autograd gives."""

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from raceway.autograd.ensembles import Ensemble
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
