"""Policies: from observations to actions, for every space of the catalogue."""

from raceway.policies.distributions import Categorical, Distribution, Gaussian, MultiCategorical, distribution_for
from raceway.policies.networks import LSTM, Encoder, mlp, network_for
from raceway.policies.policy import Policy, Weights, as_tensor, make_policy

__all__ = [
    "LSTM",
    "Categorical",
    "Distribution",
    "Encoder",
    "Gaussian",
    "MultiCategorical",
    "Policy",
    "Weights",
    "as_tensor",
    "distribution_for",
    "make_policy",
    "mlp",
    "network_for",
]
