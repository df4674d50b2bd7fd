"""Trained policies, loaded from their run directories."""

import doctest
import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from raceway import train
from raceway.agents import make_policy
from raceway.agents.acting_policy import ActingPolicy
from raceway.agents.observations import batch_observations
from raceway.checkpoints.store import Checkpoints
from raceway.envs import EnvSettings
from raceway.errors import CheckpointError, ConfigError
from raceway.loaded_policy import load
from raceway.rollouts.evaluation import evaluate
from raceway.runs.recorder import Result
from raceway.runs.trained_policy import TrainedPolicy

QUICK: dict[str, Any] = {"engine": "inline", "seed": 0}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"env": "cartpole", "total_timesteps": 2000}),
    "dqn": ("dqn", {"env": "cartpole", "total_timesteps": 600}),
    "lstm": ("reinforce", {"env": "cartpole", "network": "lstm", "iterations": 2, "episodes_per_iter": 4}),
    "pendulum": ("ppo", {"env": "pendulum", "total_timesteps": 2000, "normalise_obs": True}),
    "network": (
        "ppo",
        {"env": "cartpole", "total_timesteps": 1000, "network": "tests.test_loaded_policy:wide_net"},
    ),
    "env": ("ppo", {"env": "tests.odd_envs:Odd-v0", "total_timesteps": 1000}),
}


def wide_net(observation_space: spaces.Space, action_space: spaces.Space) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 17), nn.Tanh(), nn.Linear(17, 2))


def narrow_net(observation_space: spaces.Space, action_space: spaces.Space) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    directory = tmp_path_factory.mktemp("runs")
    return {
        name: train(algorithm, run_dir=str(directory / name), **QUICK, **settings)
        for name, (algorithm, settings) in RUNS.items()
    }


@pytest.fixture(scope="module")
def runs(results: dict[str, Result]) -> dict[str, Path]:
    return {name: result.path for name, result in results.items()}


def untrained_policy(obs_space: spaces.Space, action_space: spaces.Space) -> ActingPolicy:
    return ActingPolicy(make_policy(obs_space, action_space, seed=0), obs_space, action_space, clip_actions=True)


def test_a_loaded_policy_acts(runs: dict[str, Path]) -> None:
    env = gym.make("CartPole-v1")
    policy = load(runs["ppo"])
    obs, _ = env.reset(seed=0)
    action = policy.act(obs)
    assert type(action) is int
    assert env.action_space.contains(action)
    assert policy.observation_space == env.observation_space
    assert policy.action_space == env.action_space
    assert {name: policy.about[name] for name in ("algorithm", "env")} == {"algorithm": "ppo", "env": "CartPole-v1"}
    assert policy.about["steps"] >= 2000
    assert policy.about["mean_return"] > 0


@pytest.mark.parametrize("name", ["ppo", "dqn", "lstm", "pendulum"])
def test_the_weights_are_those_that_were_trained(runs: dict[str, Path], name: str) -> None:
    policy = load(runs[name], "latest")
    summary = json.loads((runs[name] / "summary.json").read_text())
    assert policy.sha256() == summary["weights_sha256"]
    assert load(runs[name], policy.about["steps"]).sha256() == summary["weights_sha256"]


def test_a_policy_can_be_evaluated(runs: dict[str, Path]) -> None:
    policy = load(runs["ppo"])
    evaluation = policy.evaluate(5, seed=3)
    expected = evaluate(policy.policy, EnvSettings("CartPole-v1"), 5, seed=3)
    assert evaluation.returns.tolist() == expected.returns.tolist()
    sampled = policy.evaluate(5, seed=3, deterministic=False)
    assert sampled.returns.tolist() != expected.returns.tolist()


def test_an_environment_must_have_the_same_spaces(runs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"has observations of Box.*the policy was trained with Box"):
        load(runs["ppo"]).evaluate(1, env="acrobot")
    with pytest.raises(ConfigError, match="simple_spread_v3 has several agents, and this policy is for one"):
        load(runs["ppo"]).evaluate(1, env="pettingzoo:mpe2.simple_spread_v3")


def test_a_network_is_not_imported_without_trust(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tests.test_loaded_policy")
    with pytest.raises(ConfigError, match=r"tests.test_loaded_policy:wide_net.*--network.*--trust \(trust=True\)"):
        load(runs["network"])
    assert "tests.test_loaded_policy" not in sys.modules
    expected = load(runs["network"], network=wide_net).sha256()
    assert "tests.test_loaded_policy" not in sys.modules
    assert load(runs["network"], network="tests.test_loaded_policy:wide_net").sha256() == expected
    assert load(runs["network"], trust=True).sha256() == expected


def test_a_missing_network_is_an_error(runs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"'tests.test_loaded_policy:gone' cannot be imported"):
        load(runs["network"], network="tests.test_loaded_policy:gone")


def test_weights_must_fit_the_network(runs: dict[str, Path]) -> None:
    with pytest.raises(
        ConfigError, match=r"do not fit the network: actor.network.0.weight has shape \(17, 4\), not \(3, 4\)"
    ):
        load(runs["network"], network=narrow_net)
    with pytest.raises(ConfigError, match=r"do not fit the network: .* is missing"):
        load(runs["network"], network="mlp")


def test_an_environment_is_not_imported_without_trust(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tests.odd_envs")
    policy = load(runs["env"])
    with pytest.raises(ConfigError, match=r"tests.odd_envs:Odd-v0.*--env.*--trust \(trust=True\)"):
        policy.evaluate(1)
    assert "tests.odd_envs" not in sys.modules
    with pytest.warns(UserWarning, match="Overriding environment"):  # it is imported for the second time
        evaluation = policy.evaluate(2, env="tests.odd_envs:Odd-v0")
    assert load(runs["env"], trust=True).evaluate(2).returns.tolist() == evaluation.returns.tolist()


def test_functions_must_be_passed_again(tmp_path: Path) -> None:
    def make_env() -> gym.Env:
        return gym.make("CartPole-v1")

    run = tmp_path / "run"
    train("ppo", env=make_env, network=wide_net, total_timesteps=500, run_dir=str(run), **QUICK)
    with pytest.raises(ConfigError, match=r"network of this run is a function, 'wide_net'. Pass it again"):
        load(run, trust=True)
    policy = load(run, network=wide_net)
    with pytest.raises(ConfigError, match=r"env of this run is a function, 'make_env'. Pass it again"):
        policy.evaluate(1)
    assert policy.evaluate(2, env=make_env).lengths.shape == (2,)


def test_a_path_without_a_usable_run_is_an_error(tmp_path: Path, runs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="there is no directory"):
        load(tmp_path / "gone")
    with pytest.raises(ConfigError, match="is not a run"):
        load(tmp_path)
    shutil.copy(runs["ppo"] / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint at 17 steps"):
        load(runs["ppo"], 17)
    with pytest.raises(ConfigError, match="best, latest, or a number of steps, not 'bset'"):
        load(runs["ppo"], "bset")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["spaces"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="has no checkpoints: an older version wrote it"):
        load(tmp_path)


def test_a_corrupt_checkpoint_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs["ppo"], tmp_path / "run")
    for file in run.glob("checkpoints/*/policy.safetensors"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match="corrupt"):
        load(run)


def test_a_corrupt_best_checkpoint_falls_back_to_the_latest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    more: dict[str, Any] = {"iterations": 3, "save_every": 1, "run_dir": str(tmp_path / "run"), "hidden": (8,)}
    train("ppo", env="cartpole", eval_every=1, eval_episodes=1, **more, **QUICK)
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    best = checkpoints.best()
    assert best is not None
    (best.path / "policy.safetensors").write_bytes(b"")
    readable = [checkpoint.steps for checkpoint in checkpoints.all() if checkpoint.path != best.path]
    assert load(tmp_path / "run").about["steps"] == max(readable)
    assert "the best checkpoint cannot be read" in caplog.text
    with pytest.raises(CheckpointError, match="it has 0 bytes"):
        load(tmp_path / "run", best.steps)


def change_config(run: Path, key_path: str, value: Any) -> None:
    """Change an entry of config.json, or remove it if the value is None."""
    about = json.loads((run / "config.json").read_text())
    *parents, key = key_path.split(".")
    entry = about
    for parent in parents:
        entry = entry[parent]
    if value is None:
        del entry[key]
    else:
        entry[key] = value
    (run / "config.json").write_text(json.dumps(about))


KEY_PATHS = (
    "schema", "metrics_schema", "algorithm", "config", "env", "env.name", "env.kwargs", "config.hidden",
    "config.network", "config.num_envs", "config.shared_layers", "config.activation", "spaces.action",
    "spaces.observation", "spaces.action.n", "spaces.action.type", "importable", "importable.env", "config.seed",
    "config.env",
)  # fmt: skip
HARMLESS: list[tuple[str, Any]] = [
    *((f"config.{name}", None) for name in ("hidden", "num_envs", "shared_layers", "activation")),  # the defaults
    ("config.num_envs", 5), ("config.env", "x"), ("env.kwargs", {}),
]  # fmt: skip
MALFORMED = [
    (key_path, value)
    for key_path in KEY_PATHS
    for value in (None, 5, "x", [1], {})
    if (key_path, value) not in HARMLESS
]


@pytest.mark.parametrize(("key_path", "value"), MALFORMED)
def test_a_malformed_config_is_refused(runs: dict[str, Path], tmp_path: Path, key_path: str, value: Any) -> None:
    run = shutil.copytree(runs["ppo"], tmp_path / "run")
    change_config(run, key_path, value)
    with pytest.raises((ConfigError, CheckpointError)):
        load(run).env_settings().resolved()


@pytest.mark.parametrize(("key_path", "value"), HARMLESS)
def test_what_a_policy_is_not_rebuilt_from_may_change(
    runs: dict[str, Path], tmp_path: Path, key_path: str, value: Any
) -> None:
    run = shutil.copytree(runs["ppo"], tmp_path / "run")
    change_config(run, key_path, value)
    policy = load(run)
    assert policy.sha256() == load(runs["ppo"]).sha256()
    assert policy.env_settings().resolved().name == "CartPole-v1"


@pytest.mark.parametrize(
    ("key_path", "value"), [("config.hidden", [10**9]), ("config.hidden", [10**5, 10**5]), ("spaces.action.n", 10**12)]
)
def test_a_network_too_large_for_memory_is_refused(
    runs: dict[str, Path], tmp_path: Path, key_path: str, value: Any
) -> None:
    run = shutil.copytree(runs["ppo"], tmp_path / "run")
    change_config(run, key_path, value)
    with pytest.raises(ConfigError, match=r"describes a network with layers of 4, .*weights in all"):
        load(run)


def test_a_batch_gives_the_same_actions_as_its_rows(runs: dict[str, Path]) -> None:
    policy = load(runs["pendulum"])
    obs = np.random.default_rng(0).normal(size=(7, 3))
    actions = policy.act(obs)
    assert actions.shape == (7, 1)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, np.stack([policy.act(row) for row in obs]), rtol=1e-5)


def test_observations_are_normalised_as_in_training(runs: dict[str, Path]) -> None:
    policy = load(runs["pendulum"])
    normaliser = policy.policy.network[0].normaliser  # type: ignore[index]
    assert float(normaliser.count) > 1000
    assert float((normaliser.mean**2).sum()) > 0


def test_actions_are_clipped_as_in_training(runs: dict[str, Path]) -> None:
    policy = load(runs["pendulum"])
    with torch.no_grad():
        policy.policy.network[-1].bias.fill_(100.0)  # type: ignore[index]
    assert policy.act(np.zeros(3, np.float32)).tolist() == [2.0]
    policy.clip_actions = False
    assert policy.act(np.zeros(3, np.float32))[0] > 50


def test_sampled_actions_follow_the_seed(runs: dict[str, Path]) -> None:
    policy = load(runs["ppo"])
    obs = np.zeros((50, 4), np.float32)
    first = [policy.act(obs, False, seed=1), policy.act(obs, False)]
    second = [policy.act(obs, False, seed=1), policy.act(obs, False)]
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(*first)
    assert not np.array_equal(first[0], policy.act(obs, False, seed=2))
    assert len(set(policy.act(obs).tolist())) == 1


def test_epsilon_greedy_explores_for_any_batch_size(runs: dict[str, Path]) -> None:
    policy = load(runs["dqn"])
    policy.explorer.set_knobs({"epsilon": 1.0})
    obs = np.zeros((64, 4), np.float32)
    assert set(policy.act(obs, False, seed=0).tolist()) == {0, 1}
    assert {policy.act(obs[0], False) for _ in range(64)} == {0, 1}
    assert len(set(policy.act(obs).tolist())) == 1


def test_a_recurrent_policy_keeps_its_state_until_reset(runs: dict[str, Path]) -> None:
    policy = load(runs["lstm"])
    obs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

    def hidden() -> Any:
        assert policy._state is not None
        return policy._state["hidden"].numpy().copy()

    policy.act(obs)
    first = hidden()
    policy.act(obs)
    assert not np.array_equal(first, hidden())
    policy.reset([1])
    policy.act(obs)
    np.testing.assert_allclose(first[1], hidden()[1], rtol=1e-6)
    assert not np.array_equal(first[0], hidden()[0])
    with pytest.raises(ConfigError, match=r"the recurrent state of 3 episodes, but got 1 observations.*reset\(\)"):
        policy.act(obs[0])
    with pytest.raises(ConfigError, match=r"with rows \[3\], but the policy has the states of rows 0 to 2"):
        policy.reset([3])
    policy.reset()
    assert type(policy.act(obs[0])) is int
    np.testing.assert_allclose(first[:1], hidden(), rtol=1e-5)


MASKED = spaces.Dict({"observation": spaces.Box(-1, 1, (2,)), "action_mask": spaces.Box(0, 1, (3,), np.int8)})


def test_action_masks_are_respected() -> None:
    policy = untrained_policy(MASKED, spaces.Discrete(3))
    obs = np.zeros(2, np.float32)
    for allowed in range(3):
        mask = np.eye(3, dtype=np.int8)[allowed]
        assert policy.act({"observation": obs, "action_mask": mask}) == allowed
        assert policy.act(obs, action_mask=mask) == allowed
        assert policy.act({"observation": obs}, action_mask=mask) == allowed
        assert policy.act({"observation": obs}, False, action_mask=mask) == allowed
    batch = {"observation": np.zeros((3, 2)), "action_mask": np.eye(3, dtype=np.int8)}
    assert policy.act(batch).tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="allows no action at all"):
        policy.act(obs, action_mask=[0, 0, 0])
    with pytest.raises(ConfigError, match="already"):
        policy.act(batch, action_mask=batch["action_mask"])
    with pytest.raises(ConfigError, match=r"parts \['observation'\]; expected \['action_mask', 'observation'\]"):
        policy.act({"observation": obs})


def test_a_mask_works_with_a_policy_trained_without_one() -> None:
    policy = untrained_policy(spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=5))
    for allowed in range(3):
        assert policy.act([0.0, 0.0], action_mask=np.eye(3)[allowed]) == 5 + allowed
    assert policy.act(np.zeros((2, 2)), action_mask=[[0, 0, 1], [0, 1, 0]]).tolist() == [7, 6]
    with pytest.raises(ConfigError, match="allows no action at all"):
        policy.act(np.zeros((2, 2)), action_mask=[[0, 0, 1], [0, 0, 0]])
    with pytest.raises(ConfigError, match=r"the action_mask has shape \(2,\); expected \(3,\)"):
        policy.act([0.0, 0.0], action_mask=[1, 0])
    with pytest.raises(ConfigError, match="an action mask needs discrete actions"):
        untrained_policy(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,))).act([0.0, 0.0], action_mask=[1, 0])


@pytest.mark.parametrize(
    "action_space", [spaces.Discrete(3, start=2), spaces.MultiDiscrete([3, 2]), spaces.Box(-1, 1, (2, 2))]
)
@pytest.mark.parametrize(
    "obs_space",
    [
        spaces.Box(-1, 1, (2, 3), np.float64),
        spaces.Discrete(4, start=1),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
        spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}),
        spaces.Tuple([spaces.Box(0, 255, (2,), np.uint8), spaces.Discrete(2)]),
    ],
    ids=str,
)
def test_samples_of_any_space_are_accepted(obs_space: spaces.Space, action_space: spaces.Space) -> None:
    policy = untrained_policy(obs_space, action_space)
    obs_space.seed(0)
    samples = [obs_space.sample() for _ in range(3)]
    actions = [policy.act(sample) for sample in samples]
    assert all(action_space.contains(action) for action in actions)
    batch = gym.vector.utils.concatenate(obs_space, samples, gym.vector.utils.create_empty_array(obs_space, 3))
    np.testing.assert_allclose(policy.act(batch), np.stack(actions), rtol=1e-5, atol=1e-6)
    assert action_space.contains(policy.act(samples[0], False, seed=0)) or isinstance(action_space, spaces.Box)


PARTS = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (spaces.Box(-1, 1, (4,)), np.zeros(3), r"has shape \(3,\); expected \(4,\) for one, or \(N, 4\) for a batch"),
        (spaces.Box(-1, 1, (4,)), np.zeros((2, 2, 4)), r"has shape \(2, 2, 4\)"),
        (spaces.Discrete(3), np.zeros((2, 2), int), r"expected \(\) for one, or \(N,\) for a batch"),
        (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2), "is of type float64; expected uint8"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 256]), "is of type int64; expected uint8"),
        (spaces.Box(-1, 1, (2,)), np.array(["a", "b"]), "expected float32"),
        (spaces.Box(-1, 1, (2,)), [[1], [1, 2]], "is not an array"),
        (spaces.Box(-1, 1, (2,)), np.array([np.nan, 1]), r"not finite: \[nan, 1.0\]"),
        (spaces.Box(-1, 1, (2,)), {"a": 1}, r"is a mapping of \['a'\]; expected an array"),
        (spaces.Discrete(3), 3, r"values outside of Discrete\(3\): \[3\]"),
        (spaces.MultiDiscrete([2, 2]), np.array([0, -1]), "values outside of MultiDiscrete"),
        (PARTS, np.zeros(2), "is a ndarray; expected a mapping or tuple of the parts"),
        (PARTS, {"a": np.zeros(2)}, r"has the parts \['a'\]; expected \['a', 'b'\]"),
        (PARTS, {"a": np.zeros(2), "b": 1, "c": 1}, r"has the parts \['a', 'b', 'c'\]; expected"),
        (PARTS, {"a": np.zeros(3), "b": 1}, r"part 'a' of the observation has shape \(3,\)"),
        (PARTS, {"a": np.zeros((2, 2)), "b": 1}, r"do not fit together \(a: a batch of 2, b: one\)"),
        (PARTS, {"a": np.zeros((2, 2)), "b": np.zeros(3, int)}, r"\(a: a batch of 2, b: a batch of 3\)"),
    ],
)
def test_an_invalid_observation_is_an_error(space: spaces.Space, obs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batch_observations(space, obs)


@pytest.mark.parametrize("name", RUNS)
def test_the_policy_of_a_result_is_the_one_that_load_returns(name: str, results: dict[str, Result]) -> None:
    own, loaded = results[name].policy, load(results[name].path, "latest", trust=True)
    assert type(own) is type(loaded)
    assert own.about == loaded.about
    assert repr(own) == repr(loaded)
    assert own.sha256() == loaded.sha256() == results[name].summary["weights_sha256"]
    for _ in range(2):  # a recurrent policy has another state in the second call
        obs = [own.observation_space.sample() for _ in range(4)]
        assert np.array_equal(own.act(np.stack(obs)), loaded.act(np.stack(obs)))
        sampled = [policy.act(np.stack(obs), deterministic=False, seed=1) for policy in (own, loaded)]
        assert np.array_equal(*sampled)
    assert np.array_equal(own.evaluate(3).returns, loaded.evaluate(3).returns)


def test_the_policy_of_a_result_is_ready_for_inference(tmp_path: Path) -> None:
    def network(observation_space: spaces.Space, action_space: spaces.Space) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def env() -> gym.Env:
        return gym.make("CartPole-v1", max_episode_steps=10)

    settings = {"iterations": 1, "episodes_per_iter": 2, "num_envs": 2, "network": network, "env": env}
    policy = train("reinforce", run_dir=tmp_path / "run", **QUICK, **settings).policy
    assert not policy.policy.training  # else dropout would make actions random
    assert policy.evaluate(2).lengths.max() <= 10


def test_results_and_policies_can_be_pickled(results: dict[str, Result]) -> None:
    originals = results["lstm"], results["lstm"].policy, load(results["env"].path)
    result, policy, loaded = pickle.loads(pickle.dumps(originals))
    assert result.summary == results["lstm"].summary
    assert policy.sha256() == result.policy.sha256() == result.summary["weights_sha256"]
    assert policy.evaluate(1).lengths > 0
    with pytest.raises(ConfigError, match="--trust"):
        loaded.evaluate(1)


def test_repr(runs: dict[str, Path]) -> None:
    policy = load(runs["ppo"])
    assert isinstance(policy, TrainedPolicy)
    assert repr(policy) == f"<policy of ppo on CartPole-v1, after {policy.about['steps']:,} steps>"


def test_repr_of_a_result(results: dict[str, Result]) -> None:
    summary = results["ppo"].summary
    mean, run = f"{summary['mean_return']:.4g}", summary["run_dir"]
    assert repr(results["ppo"]) == f"<result of ppo on CartPole-v1, mean return {mean} after 2,048 steps, in {run}>"


def test_the_documentation_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[1] / "docs" / "using-a-policy.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted > 15
    assert results.failed == 0
