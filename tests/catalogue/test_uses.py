"""What every algorithm works with: nested observations, images, networks of a user's own; and what users do with it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

from raceway import load
from raceway.agents.network_choice import RECURRENT
from raceway.algorithms import find_algorithm
from raceway.training.train import train
from tests.catalogue.small_settings import NAMES, acts, small_settings
from tests.catalogue.various_envs import EPISODE_STEPS, OwnMemory, OwnNetwork, Various

ACTING = [name for name in NAMES if acts(name) and name != "slateq"]
"""The algorithms that choose their environment freely: those of datasets have that of the dataset, slateq slates."""

LINEAR = ("linucb", "lints")
"""The algorithms that have a model of their own instead of a network."""


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str, settings: dict[str, Any] | None = None, *, images: bool = False, iterations: int = 8) -> Any:
    """Train in an environment with nested observations, or images."""
    env_kwargs = {"images": images, "continuous": "discrete" not in find_algorithm(name).actions}
    settings = {**(settings or small_settings(name)), "env": Various, "env_kwargs": env_kwargs, "run_dir": "run"}
    return train(name, iterations=iterations, progress=False, **settings)


def first_actions(policy: Any, samples: list[Any]) -> np.ndarray:
    """Return the actions in the first steps of episodes that start with these observations."""
    actions = []
    for obs in samples:
        policy.reset()
        actions.append(policy.act({key: obs[key] for key in ("place", "room")}))
    return np.array(actions)


def is_action(policy: Any, action: Any) -> bool:
    """Whether an action is one of the policy's action space."""
    return bool(policy.action_space.contains(action))


def observations(space: spaces.Space, num: int) -> list[Any]:
    """Return samples of a space."""
    space.seed(0)
    return [space.sample() for _ in range(num)]


@pytest.mark.parametrize("name", ACTING)
def test_a_policy_of_nested_observations_is_loaded_evaluated_and_exported(name: str) -> None:
    result = run(name)
    policy = load("run", "latest")
    assert policy.sha256() == result.policy.sha256()
    assert result.policy.evaluate(3).mean_length == EPISODE_STEPS
    samples = observations(policy.observation_space, 24)
    actions = first_actions(policy, samples)
    np.testing.assert_array_equal(first_actions(policy, samples), actions)  # nothing is sampled
    session = onnxruntime.InferenceSession(policy.export_onnx("policy.onnx"))
    inputs = {key: np.array([obs[key] for obs in samples]) for key in ("place", "room")}
    for entry in session.get_inputs():  # the recurrent state and the last action, if there are any
        inputs.setdefault(entry.name, np.zeros((len(samples), *entry.shape[1:]), np.float32))
    np.testing.assert_allclose(session.run(["action"], inputs)[0], actions, rtol=1e-4, atol=1e-5)
    assert policy.sha256() == result.policy.sha256()


@pytest.mark.parametrize("name", ACTING)
def test_it_learns_from_images(name: str) -> None:
    result = run(name, images=True, iterations=4)
    (image,) = observations(result.policy.observation_space, 1)
    assert is_action(result.policy, result.policy.act(image))


@pytest.mark.parametrize("name", [name for name in ACTING if name not in LINEAR])
def test_it_trains_a_network_of_a_users_own(name: str) -> None:
    own = OwnMemory if find_algorithm(name).config.network in RECURRENT else OwnNetwork
    small = small_settings(name, network=own)
    small.pop("hidden", None)  # of no use to those that have no other network
    run(name, small)
    policy = load("run", "latest", network=own)
    (network,) = (module for module in policy.policy.modules() if isinstance(module, OwnNetwork))
    assert not torch.equal(network.layers[0].weight, network.initial_weight)
    (obs,) = observations(policy.observation_space, 1)
    assert is_action(policy, policy.act(obs))
