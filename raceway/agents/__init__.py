"""Policies: networks and distributions for every supported observation and action space."""

from raceway.agents.distributions import (
    Categorical,
    Distribution,
    EpsilonGreedy,
    Gaussian,
    MultiCategorical,
    distribution_for,
)
from raceway.agents.networks import LSTM, Encoder, Normaliser, actor_critic, mlp, network_for
from raceway.agents.policy import Policy, Weights, as_tensor, make_policy

__all__ = [
    "LSTM",
    "Categorical",
    "Distribution",
    "Encoder",
    "EpsilonGreedy",
    "Gaussian",
    "MultiCategorical",
    "Normaliser",
    "Policy",
    "Weights",
    "actor_critic",
    "as_tensor",
    "distribution_for",
    "make_policy",
    "mlp",
    "network_for",
]
