"""Exported policies return the same actions as `act`."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from torch import nn

from raceway import train
from raceway.agents import Agent, make_policy
from raceway.agents.acting_policy import ActingPolicy
from raceway.agents.export import ExportablePolicy, export_onnx, export_torch
from raceway.agents.observations import batch_observations
from raceway.errors import ConfigError
from raceway.loaded_policy import load
from tests.example_agents import example_actor, example_actor_critic

NUM_OBS = 200
IMAGE = spaces.Box(0, 255, (2, 40, 40), np.uint8)
NESTED = spaces.Dict(
    {
        "a.place": spaces.Box(-1, 1, (2, 2), np.float64),
        "pair": spaces.Tuple([spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.MultiBinary(2)]),
    }
)
MASKED = spaces.Dict({"observation": spaces.Box(-1, 1, (3,)), "action_mask": spaces.MultiBinary(4)})
CASES: dict[str, tuple[spaces.Space, spaces.Space, dict[str, Any]]] = {
    "box": (spaces.Box(-5, 5, (6,)), spaces.Box(-0.05, 0.05, (3,)), {"normalise_obs": True}),
    "masked": (MASKED, spaces.Discrete(4, start=-1), {"shared_layers": False}),
    "nested": (NESTED, spaces.MultiDiscrete([3, 2]), {"shared_layers": True}),
    "image": (IMAGE, spaces.Discrete(3), {}),
    "double": (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2, 2), np.float64), {}),
    "recurrent": (spaces.Box(-1, 1, (3,)), spaces.Discrete(3), {"network": "lstm"}),
}


def acting_policy(case: str) -> ActingPolicy:
    obs_space, action_space, settings = CASES[case]
    makes_critic = settings.keys() & {"normalise_obs", "shared_layers"}
    make = example_actor_critic if makes_critic else example_actor
    agent: Agent = make(obs_space, action_space, hidden=(128,), **settings)
    if settings.get("normalise_obs"):
        rows = torch.from_numpy(np.random.default_rng(0).normal(2, 3, (100, 6)).astype(np.float32))
        agent.observe({"obs": rows})
    random = torch.Generator().manual_seed(1)
    for parameter in agent.parameters():  # larger than at initialisation, so that actions differ and biases count
        nn.init.normal_(parameter, std=0.5 if parameter.ndim > 1 else 0.1, generator=random)
    return ActingPolicy(agent.eval().actor, obs_space, action_space, clip_actions=True)


def samples(space: spaces.Space, num: int) -> Any:
    """Return a batch of observations, in which each mask allows an action."""
    space.seed(0)
    observations = [space.sample() for _ in range(num)]
    for obs in observations:
        if space is MASKED:
            obs["action_mask"][np.random.default_rng(obs["action_mask"].tobytes()[0]).integers(4)] = 1
    rows = [batch_observations(space, obs)[0] for obs in observations]
    return concatenate(rows)


def concatenate(rows: list[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {key: concatenate([row[key] for row in rows]) for key in rows[0]}
    return np.concatenate(rows)


def flat(tree: Any, name: str = "") -> dict[str, np.ndarray]:
    """Return the parts of observations by input name."""
    if not isinstance(tree, dict):
        return {name or "obs": tree}
    parts = [flat(part, f"{name}.{key}" if name else key) for key, part in tree.items()]
    return {key: value for part in parts for key, value in part.items()}


def load_onnx(path: Path) -> Any:
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def load_torch(path: Path) -> Any:
    module = torch.export.load(path).module()
    names = ["action", "next_state_hidden", "next_state_cell"]

    def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = module({name: torch.from_numpy(part) for name, part in inputs.items()})
        return {name: part.detach().numpy() for name, part in zip(names, outputs, strict=False)}

    return run


EXPORTS = {"onnx": (export_onnx, load_onnx), "pt2": (export_torch, load_torch)}


@pytest.mark.parametrize("kind", EXPORTS)
@pytest.mark.parametrize("case", CASES)
def test_an_export_returns_the_actions_of_act(case: str, kind: str, tmp_path: Path) -> None:
    acting = acting_policy(case)
    obs_space, action_space, _ = CASES[case]
    export, load_export = EXPORTS[kind]
    exportable = ExportablePolicy(acting.policy, obs_space, action_space, acting.clip_actions)
    run = load_export(export(exportable, tmp_path / f"policy.{kind}"))
    for num in (NUM_OBS, 1, 3):
        obs = samples(obs_space, num)
        state = {f"state_{name}": part.numpy() for name, part in acting.policy.initial_state(num).items()}
        acting.reset()
        for _ in range(3 if state else 1):
            actual = run({**flat(obs), **state})
            expected = acting.act(obs)
            assert actual["action"].dtype == expected.dtype
            if isinstance(action_space, spaces.Box):
                np.testing.assert_allclose(actual["action"], expected, rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(actual["action"], expected)
            assert num < NUM_OBS or len(np.unique(expected)) > 1  # else the comparison would prove nothing
            state = {name: actual[f"next_{name}"] for name in state}


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"env": "cartpole", "total_timesteps": 1000}),
        ("dqn", {"env": "cartpole", "total_timesteps": 600}),
        ("ppo", {"env": "pendulum", "total_timesteps": 1000, "normalise_obs": True}),
        ("reinforce", {"env": "cartpole", "network": "lstm", "iterations": 1, "episodes_per_iter": 4}),
    ],
    ids=["ppo", "dqn", "normalised", "lstm"],
)
def test_trained_policies_are_exported(algorithm: str, settings: dict[str, Any], tmp_path: Path) -> None:
    train(algorithm, engine="inline", run_dir=str(tmp_path / "run"), **settings)
    policy = load(tmp_path / "run")
    before = policy.policy.sha256()
    for run in (
        load_onnx(policy.export_onnx(tmp_path / "policy.onnx")),
        load_torch(policy.export_torch(tmp_path / "policy.pt2")),
    ):
        obs = np.random.default_rng(0).normal(size=(NUM_OBS, *policy.observation_space.shape)).astype(np.float32)
        state = {f"state_{name}": part.numpy() for name, part in policy.policy.initial_state(NUM_OBS).items()}
        policy.reset()
        actual, expected = run({"obs": obs, **state})["action"], policy.act(obs)
        if algorithm == "ppo" and settings["env"] == "pendulum":
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(actual, expected)
    assert policy.policy.sha256() == before


def test_names_of_inputs_and_outputs(tmp_path: Path) -> None:
    acting = acting_policy("nested")
    path = export_onnx(ExportablePolicy(acting.policy, NESTED, acting.action_space, True), tmp_path / "nested.onnx")
    session = onnxruntime.InferenceSession(path)
    assert {tensor.name for tensor in session.get_inputs()} == {"a.place", "pair.0", "pair.1"}
    assert [tensor.name for tensor in session.get_outputs()] == ["action"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["nested.onnx"]  # with the weights inside


def test_inputs_may_come_in_any_order(tmp_path: Path) -> None:
    acting = acting_policy("nested")
    path = export_torch(ExportablePolicy(acting.policy, NESTED, acting.action_space, True), tmp_path / "nested.pt2")
    obs = samples(NESTED, 20)
    reordered = dict(reversed(flat(obs).items()))
    np.testing.assert_array_equal(load_torch(path)(reordered)["action"], acting.act(obs))


def test_inputs_of_the_same_name_are_refused() -> None:
    inner = spaces.Dict({"b": spaces.Discrete(2)})
    space = spaces.Dict({"a.b": spaces.Discrete(2), "a": inner})
    with pytest.raises(ConfigError, match="the same input name"):
        ExportablePolicy(make_policy(space, spaces.Discrete(2)), space, spaces.Discrete(2), False)


@pytest.mark.parametrize(("export", "suffix"), [(export_onnx, ".onnx"), (export_torch, ".pt2")])
def test_the_path_is_checked(export: Any, suffix: str, tmp_path: Path) -> None:
    acting = acting_policy("double")
    exportable = ExportablePolicy(acting.policy, acting.observation_space, acting.action_space, True)
    with pytest.raises(ConfigError, match=f"must end in {suffix}"):
        export(exportable, tmp_path / "policy.txt")
    with pytest.raises(ConfigError, match="there is no directory"):
        export(exportable, tmp_path / "gone" / f"policy{suffix}")


def test_a_network_that_onnx_cannot_express_is_refused(tmp_path: Path) -> None:
    class Spectrum(nn.Module):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvalsh(obs)

    space = spaces.Box(-1, 1, (2, 2))
    policy = make_policy(space, spaces.Discrete(2), lambda *_: Spectrum())
    exportable = ExportablePolicy(policy, space, spaces.Discrete(2), False)
    with pytest.raises(ConfigError, match="ONNX cannot express this network"):
        export_onnx(exportable, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
    assert export_torch(exportable, tmp_path / "policy.pt2").exists()


def test_a_network_that_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    class InNumpy(nn.Module):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(np.tanh(obs.detach().numpy()))

    space = spaces.Box(-1, 1, (2,))
    policy = make_policy(space, spaces.Discrete(2), lambda *_: InNumpy())
    with pytest.raises(ConfigError, match="torch cannot export this network"):
        export_torch(ExportablePolicy(policy, space, spaces.Discrete(2), False), tmp_path / "policy.pt2")
