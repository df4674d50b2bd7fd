"""Weights as arrays: the tensors of a module are found once, and still are the current ones."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import torch
from torch import nn

from raceway.agents.weights import WeightsModule, weights_of_parts


class Network(WeightsModule):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)


def test_names_are_those_of_the_state_dict() -> None:
    network = Network()
    assert set(network.weights()) == set(network.state_dict())
    assert set(network.weights(["norm"])) == {name for name in network.state_dict() if name.startswith("norm.")}
    assert set(weights_of_parts(network.weights(), ["first"])) == {"first.weight", "first.bias"}


def test_parts_and_tensors_that_were_replaced_are_seen() -> None:
    network = Network()
    network.weights()
    network.norm.running_mean = torch.full((3,), 5.0)
    assert network.weights()["norm.running_mean"].tolist() == [5.0] * 3
    network.first.weight = nn.Parameter(torch.ones(3, 2))
    assert network.weights()["first.weight"].sum() == 6
    network.second = nn.Linear(3, 1)
    assert "second.bias" in network.weights()


def test_a_copy_has_its_own_weights() -> None:
    network = Network()
    network.weights()
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        other.load({"first.bias": np.full(3, 7, np.float32)})
        assert other.weights()["first.bias"].tolist() == [7.0] * 3
        assert network.weights()["first.bias"].tolist() != [7.0] * 3
