"""Agents: what an algorithm trains. Networks and distributions for every supported observation and action space."""

from raceway.agents.agent import ActorCritic, Agent, QAgent, Spaces
from raceway.agents.builders import MakeAgent, build_agent
from raceway.agents.distributions import (
    Categorical,
    Deterministic,
    Distribution,
    Gaussian,
    MultiCategorical,
    distribution_for,
)
from raceway.agents.exploration import (
    EpsilonGreedy,
    Explorer,
    GaussianNoise,
    Greedy,
    Knobs,
    NoisyGreedy,
    Sample,
    UniformWarmUp,
)
from raceway.agents.network_choice import network_for
from raceway.agents.networks import Encoder, Normaliser, mlp
from raceway.agents.policy import Policy, as_tensor, make_policy
from raceway.agents.recurrent import RecurrentNetwork
from raceway.agents.weights import Weights, copy_weights

__all__ = [
    "ActorCritic",
    "Agent",
    "Categorical",
    "Deterministic",
    "Distribution",
    "Encoder",
    "EpsilonGreedy",
    "Explorer",
    "Gaussian",
    "GaussianNoise",
    "Greedy",
    "Knobs",
    "MakeAgent",
    "MultiCategorical",
    "NoisyGreedy",
    "Normaliser",
    "Policy",
    "QAgent",
    "RecurrentNetwork",
    "Sample",
    "Spaces",
    "UniformWarmUp",
    "Weights",
    "as_tensor",
    "build_agent",
    "copy_weights",
    "distribution_for",
    "make_policy",
    "mlp",
    "network_for",
]
