"""Learning from a dataset: losses by hand, isolated gradients, statistics of the dataset, and the bait."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import raceway
from raceway.agents import Spaces, build_agent
from raceway.algorithms import cql, discrete_cql, find_algorithm, iql, marwil, td3_bc
from raceway.datasets import DatasetWriter, open_dataset
from raceway.datasets.episodes import make_episode
from raceway.envs import Bait
from raceway.rl import Batch
from raceway.runs.recorder import Result
from raceway.training.train import Training, resume, train
from tests.catalogue.various_envs import OwnNetwork, Various
from tests.recorded_episodes import record_random

QUICK = {"engine": "inline", "hidden": (8,), "batch_size": 16, "progress": False, "save_seconds": 0}
SPACES = Spaces(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2.0, 4.0, (2,), np.float32))
NAMES = ["marwil", "cql", "discrete_cql", "iql", "td3_bc"]


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def constant(*values: float) -> Any:
    """Return a function of observations, and more, that returns the same number for each of E critics, [E, N]."""
    return lambda obs, *more, **options: numbers(*values)[:, None].expand(-1, len(obs))


ROWS: Batch = {
    "obs": torch.zeros(2, 3), "next_obs": torch.zeros(2, 3), "action": torch.zeros(2, 2), "reward": numbers(1, 0),
    "discount": numbers(0.5, 0),
}  # fmt: skip
"""A step with γ = 1/2, and a terminal one."""


# Losses by hand.


def test_marwils_losses() -> None:
    """A truncated step: R = 2 + 0.5 · 4 = 4; a terminated one: R = 2. Errors 4 - 4 and 2 - 4, scaled by √2."""
    agent: Any = SimpleNamespace(values=lambda obs: torch.full((len(obs),), 4.0))
    batch = ROWS | {"return": numbers(2, 2), "final_obs": torch.zeros(2, 3), "final_discount": numbers(0.5, 0)}
    value, _ = marwil.critic_loss(agent, batch)
    assert float(value) == (0 + 4) / 2
    assert batch["advantage"].tolist() == pytest.approx([0, -math.sqrt(2)])
    agent.actor = SimpleNamespace(log_prob=lambda batch: numbers(-1, -3))
    expected = (1 * 1 + math.exp(-2 * math.sqrt(2)) * 3) / 2
    assert float(marwil.actor_loss(agent, batch, beta=2.0)) == pytest.approx(expected)
    assert float(marwil.actor_loss(agent, batch, beta=0.0)) == 2.0


def test_iqls_losses() -> None:
    """V = 2 against the smaller of the *target* critics, 3; the trained ones, 10 and 20, are not used for it."""
    agent: Any = SimpleNamespace(values=lambda obs: torch.full((len(obs),), 2.0), critics=constant(10, 20))
    agent.target = SimpleNamespace(critics=constant(5, 3))
    batch = dict(ROWS)
    assert float(iql.value_loss(agent, batch, expectile=0.7)[0]) == pytest.approx(0.7 * 1)
    assert batch["advantage"].tolist() == [1, 1]
    agent.actor = SimpleNamespace(log_prob=lambda batch: numbers(-1, -3))
    assert float(iql.actor_loss(agent, batch, beta=3.0, max_weight=100.0)) == pytest.approx(2 * math.exp(3))
    assert float(iql.actor_loss(agent, batch, beta=9.0, max_weight=100.0)) == 200
    # y = 1 + 0.5 · 2 = 2, and 0 after termination
    expected = ((10 - 2) ** 2 + 10**2) / 2 + ((20 - 2) ** 2 + 20**2) / 2
    assert float(iql.critics_loss(agent, batch)[0]) == expected


def test_discrete_cqls_loss() -> None:
    """Q = (log 1, log 3), the data takes action 0; y = 1 + 0.5 · 4, of the action that Q prefers, and 0."""
    q_values = numbers(1, 3).log().expand(2, 2)
    agent: Any = SimpleNamespace(
        q_values=lambda batch: q_values, next_q_values=lambda batch: q_values,
        target=SimpleNamespace(next_q_values=lambda batch: numbers(9, 4).expand(2, 2)),
        action_index=lambda batch: torch.zeros(2, dtype=torch.long),
    )  # fmt: skip
    value, metrics = discrete_cql.loss(agent, dict(ROWS), penalty=10.0)
    huber = ((3 - 0.5) + 0) / 2  # |0 - 3| - 1/2, and 0
    assert float(value) == pytest.approx(huber + 10 * math.log(4))
    assert float(metrics["conservative_gap"]) == pytest.approx(math.log(4))


def test_cqls_loss() -> None:
    """All critics are constant, so the gap is log of the mean of 1 / density; densities are those of the samples."""
    agent = build_agent(cql.agent, SPACES, cql.Config(hidden=(8,)))
    agent.actor.network[-1].weight.data.zero_()  # type: ignore[index,union-attr]
    del agent.critics
    agent.__dict__["critics"] = constant(1, 2)
    agent.__dict__["_target"] = SimpleNamespace(critics=constant(3, 5))
    agent.temperature.log_alpha.data.fill_(-100.0)  # no entropy
    with torch.no_grad():
        value, metrics = cql.critics_loss(agent, dict(ROWS), penalty=2.0, num_actions=50, random=seeded())
    params = agent.actor(ROWS["obs"], {})[0].detach()
    sampled_actions = cql.sampled_actions(agent, params, params, 50, after_one_sample(agent, params))
    gap = float((-sampled_actions[1]).exp().mean(1).log().mean())  # Q cancels
    td = 0.5 * np.mean([(1 - 2.5) ** 2 + (2 - 2.5) ** 2, 1 + 4])  # y = 1 + 0.5 · 3, and 0
    assert float(metrics["conservative_gap"]) == pytest.approx(gap, rel=1e-5)
    assert float(value) == pytest.approx(td + 2 * 2 * gap, rel=1e-5)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def after_one_sample(agent: Any, params: Tensor) -> torch.Generator:
    """Return a generator that has sampled the actions of the target."""
    random = seeded()
    agent.actor.distribution.sample_with_log_prob(params, random)
    return random


def test_sampled_actions_fill_the_bounds_and_have_their_densities() -> None:
    agent = build_agent(cql.agent, SPACES, cql.Config(hidden=(8,)))
    params, next_params = torch.tensor([[0.0, 0.0, -1.0, -1.0], [0.2, 0.5, -1.0, -2.0]])[:, None].expand(-1, 3, -1)
    actions, log_density = cql.sampled_actions(agent, params, next_params, 400, seeded())
    assert actions.shape == (3, 1200, 2)
    uniform = actions[:, :400].reshape(-1, 2)
    assert uniform.min() < -1.95
    assert uniform.max() > 3.95
    assert uniform.mean(0).tolist() == pytest.approx([1, 1], abs=0.15)
    assert (log_density[:, :400] == 2 * math.log(0.5)).all()
    log_prob = agent.actor.distribution.log_prob
    for part, of in ((slice(400, 800), params), (slice(800, None), next_params)):
        expected = log_prob(of[:, None].expand(-1, 400, -1).reshape(-1, 4), actions[:, part].reshape(-1, 2))
        inside = ((actions[:, part] - 1).abs() < 2.9).all(-1).reshape(-1)  # where the inverse of tanh has its digits
        assert inside.float().mean() > 0.9
        torch.testing.assert_close(log_density[:, part].reshape(-1)[inside], expected[inside], rtol=1e-3, atol=1e-3)


def test_td3_bcs_actor_loss() -> None:
    """Actions 1 and 4, of bounds -2 to 4, are 0 and 1 when scaled; those of the policy are 0. λ = 2.5 / 5."""
    agent = build_agent(td3_bc.agent, SPACES, td3_bc.Config(hidden=(8,)))
    for parameter in agent.actor.parameters():
        parameter.data.zero_()
    del agent.critics
    agent.__dict__["critics"] = lambda obs, action, num: numbers(-4, 6)[None]
    batch = ROWS | {"action": torch.tensor([[1.0, 1.0], [4.0, 1.0]])}
    value, metrics = td3_bc.actor_loss(agent, batch, alpha=2.5)
    assert float(metrics["action_distance"]) == 0.25
    assert value.item() == pytest.approx(0.25 - 0.5 * 1)


# Gradients.


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_trains_its_own_part_only(name: str) -> None:
    """After a step of one objective, the parameters and gradients of the others are bit-equal."""
    algorithm = find_algorithm(name)
    action_space = SPACES.action if "box" in algorithm.actions else spaces.Discrete(3)
    cfg = algorithm.settings(**{key: value for key, value in QUICK.items() if key != "progress"}, lr=1e-2)
    agent = build_agent(algorithm.agent, Spaces(SPACES.observation, action_space), cfg)
    learner = cfg.learner(agent)
    ctx: Any = SimpleNamespace(learner=learner, place=lambda *place: {}, weights=lambda: None)
    operators: list[Any] = []
    algorithm.plan(Recorder(operators), cfg, ctx)  # type: ignore[arg-type]
    (train_one_step,) = (each for each in operators if hasattr(each, "objectives"))
    for _ in range(2):  # the delayed ones too
        learner.train(train_one_step.objectives, example_batch(action_space), targets=train_one_step.targets)
    parts = [name for name, part in agent.named_children() if list(part.parameters())]
    for own, objective in train_one_step.objectives.items():
        before = {key: (value.detach().clone(), value.grad.clone()) for key, value in agent.named_parameters()}  # type: ignore[union-attr]
        batch = example_batch(action_space)
        batch |= {"advantage": np.ones(12, np.float32), "new_log_prob": np.zeros(12, np.float32)}
        learner.version |= 1  # so that the next update is even
        learner.train({own: objective}, batch, targets=train_one_step.targets)
        for key, value in agent.named_parameters():
            same = torch.equal(value, before[key][0]) and torch.equal(value.grad, before[key][1])  # type: ignore[arg-type]
            assert same != (own in ("agent", key.partition(".")[0])), (own, key)
    assert set(train_one_step.objectives) in ({"agent"}, set(parts))


class Recorder:
    """A stream that records its operators."""

    def __init__(self, operators: list[Any]) -> None:
        self.operators = operators

    def for_each(self, operator: Any, **place: Any) -> "Recorder":
        self.operators.append(operator)
        return self

    def gather_sync(self) -> "Recorder":
        return self

    flatten = gather_sync


def example_batch(action_space: spaces.Space, num: int = 12) -> Batch:
    random = np.random.default_rng(0)
    columns: Batch = {
        name: random.normal(size=(num, 3)).astype(np.float32) for name in ("obs", "next_obs", "final_obs")
    }
    columns["action"] = random.integers(3, size=num)
    if isinstance(action_space, spaces.Box):
        columns["action"] = random.uniform(-2, 4, (num, 2)).astype(np.float32)
    return columns | {
        name: random.random(num, np.float32) for name in ("reward", "discount", "return", "final_discount")
    }


# MARWIL and behaviour cloning.


def run(name: str, dataset: str, **settings: Any) -> Result:
    return train(name, dataset=dataset, **{**QUICK, **settings})


def actor_weights(result: Result) -> dict[str, bytes]:
    weights = result.policy.weights().items()
    return {name: array.tobytes() for name, array in weights if name.startswith("actor.")}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", ["cartpole", "pendulum"])
def test_marwil_without_beta_is_bc(kind: str, compiled: bool, cartpole_dataset: str, pendulum_dataset: str) -> None:
    data = {"cartpole": cartpole_dataset, "pendulum": pendulum_dataset}[kind]
    settings = {"hidden": (16, 16), "total_updates": 30, "seed": 3, "num_shards": 2, "compile_losses": compiled}
    cloned, weighted, other = (
        run("bc", data, run_dir="bc", **settings),
        run("marwil", data, run_dir="marwil", beta=0.0, **settings),
        run("marwil", data, run_dir="other", beta=1.0, **settings),
    )
    assert actor_weights(weighted) == actor_weights(cloned)
    assert actor_weights(other) != actor_weights(cloned)


# Statistics of the dataset.


def test_td3_bc_normalises_by_the_dataset_and_saves_it_with_the_policy(pendulum_dataset: str) -> None:
    result = run("td3_bc", pendulum_dataset, run_dir="run", total_updates=4)
    dataset = open_dataset(pendulum_dataset)
    obs = dataset.rows(np.arange(dataset.num_steps))["obs"]
    for agent in (result.policy.agent, raceway.load("run").agent):
        for encoder in (agent.actor.network[0], agent.critics.encoder):
            np.testing.assert_allclose(encoder.normaliser.mean, obs.mean(0), rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(encoder.normaliser.var, obs.var(0), rtol=1e-4, atol=1e-6)
            assert float(encoder.normaliser.count) == len(obs)  # not those of minibatches
    plain = run("td3_bc", pendulum_dataset, run_dir="plain", total_updates=4, normalise_obs=False)
    assert plain.policy.agent.actor.network[0].normaliser is None
    assert raceway.load("run").act(obs[0]) == result.policy.act(obs[0])


def test_the_targets_of_td3_bc_normalise_too(pendulum_dataset: str) -> None:
    algorithm = find_algorithm("td3_bc")
    settings = {key: value for key, value in QUICK.items() if key != "progress"}
    training = Training(algorithm, algorithm.settings(dataset=pendulum_dataset, total_updates=2, **settings))
    with training.open_flow(run=True) as flow:
        list(flow.take(2))
    for name, buffer in training.agent.named_buffers():
        torch.testing.assert_close(dict(training.agent.target.named_buffers())[name], buffer)
        assert name.endswith("count") or buffer.abs().sum() > 0


# Runs.


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_compiled_and_those_with_statistics_of_the_batch_in_one_piece(
    name: str, dataset_for: Callable[[str], str]
) -> None:
    """In several blocks of rows, the statistics would be those of blocks."""
    algorithm = find_algorithm(name)
    settings = {"hidden": (128, 128), "batch_size": 300, "engine": "inline", "total_updates": 2}
    training = Training(algorithm, algorithm.settings(dataset=dataset_for(name), **settings))
    with training.open_flow(run=True) as flow:
        list(flow.take(2))
    compiled = training.learner._compiled_losses
    assert compiled is not None
    assert compiled.refused == {}
    blocks = {objective: compiled.num_blocks(objective) for objective in training.learner.objectives}
    whole = {"marwil": "critic", "td3_bc": "actor"}.get(name)
    assert blocks == {objective: [1 if objective in (whole, "temperature") else 3] for objective in blocks}


@pytest.mark.parametrize("name", NAMES)
def test_a_run_resumes_exactly_in_mid_epoch(name: str, dataset_for: Callable[[str], str]) -> None:
    data = dataset_for(name)
    settings: dict[str, Any] = {"total_updates": 9, "lr_end": 0.0, "eval_every": 4, "eval_episodes": 1}
    settings |= {"num_actions": 2} if name == "cql" else {}
    whole = run(name, data, run_dir="whole", **settings)
    first = run(name, data, run_dir="parts", iterations=5, **settings)
    assert first.metrics[-1]["dataset/epoch"] % 1 > 0
    resumed = resume("parts", iterations=None, progress=False).summary
    assert (resumed["resumed_at"], resumed["updates"]) == (5, 9)
    assert resumed["state_sha256"] == whole.summary["state_sha256"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["nested", "images", "own network"])
def test_observations_and_networks_of_other_kinds(name: str, kind: str) -> None:
    """An image has many numbers, none of which are normalised."""
    env_kwargs = {"images": kind == "images", "continuous": name != "discrete_cql"}
    data = record_random(Path("data"), Various(**env_kwargs), num_episodes=4)
    settings: dict[str, Any] = {"env": Various, "env_kwargs": env_kwargs, "batch_size": 8, "total_updates": 3}
    settings |= {"num_actions": 1} if name == "cql" else {}
    settings |= {"network": OwnNetwork} if kind == "own network" else {}
    settings |= {"hidden": ()} if (name, kind) == ("discrete_cql", "own network") else {}  # of no use to it
    policy = run(name, str(data), **settings).policy
    obs = open_dataset(data).rows(np.arange(2))["obs"]
    for action in policy.act(obs):
        assert policy.action_space.contains(action)


def test_a_joined_dataset_is_read_from_other_directories(
    cartpole_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(cartpole_dataset, "one")
    record_random(Path("two"), "CartPole-v1", num_episodes=3)
    settings = {"run_dir": str(tmp_path / "run"), "num_shards": 2}
    whole = run("marwil", "one,two", **{**settings, "run_dir": "whole"}, total_updates=6)
    run("marwil", "one,two", **settings, total_updates=6, iterations=3)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = resume(tmp_path / "run", iterations=None, engine="process", num_workers=2, progress=False)
    assert resumed.summary["state_sha256"] == whole.summary["state_sha256"]


# The bait.


def bait_dataset(continuous: bool) -> str:
    env, random = Bait(continuous=continuous), np.random.default_rng(0)
    about = {"env": "raceway/Bait-v0", "env_kwargs": {"continuous": continuous}}
    with DatasetWriter("bait", env.observation_space, env.action_space, about) as writer:
        for seed in range(256):
            obs, _ = env.reset(seed=seed)
            action = env.data_action(obs, random)
            assert not env.is_bait(obs, action)
            following, reward, terminated, _, _ = env.step(action)
            step = {"obs": [obs, following], "action": [action], "reward": [reward]}
            writer.add(make_episode(*writer._spaces, **step, terminated=terminated, truncated=False))
    return "bait"


def baits_taken(name: str, continuous: bool, **settings: Any) -> tuple[int, Any]:
    """Train on the dataset, and return how often the policy takes the bait in nine states, and the policy."""
    shared = {"batch_size": 64, "seed": 0, "env_kwargs": {}, "run_dir": f"{name}-{settings['penalty']}"}
    policy = run(
        name, "bait", env="raceway/Bait-v0", **{**shared, "env_kwargs": {"continuous": continuous}, **settings}
    ).policy
    env = Bait(continuous=continuous)
    states = np.linspace(-1, -0.2, 9, dtype=np.float32)[:, None]
    return sum(env.is_bait(obs, policy.act(obs)) for obs in states), policy


def test_a_bait_of_a_discrete_action() -> None:
    """A linear Q-function extrapolates the rewards of action 1 exactly; with the penalty, they are not believed."""
    bait_dataset(continuous=False)
    settings = {"hidden": (), "lr": 2e-2, "target_every": 10, "total_updates": 800, "lr_end": 0.0}
    plain, policy = baits_taken("discrete_cql", False, penalty=0.0, **settings)
    with torch.no_grad():
        q_values = policy.agent.actor(torch.tensor([[-1.0]]), {})[0][0]
    expected = [Bait().extrapolated_value(np.array([-1.0]), action) for action in (0, 1)]
    assert expected == [0, 1]
    assert q_values.tolist() == pytest.approx(expected, abs=0.02)
    conservative, _ = baits_taken("discrete_cql", False, penalty=5.0, **settings)
    assert (plain, conservative) == (9, 0)


def test_a_bait_of_a_continuous_action() -> None:
    bait_dataset(continuous=True)
    settings = {"hidden": (32, 32), "lr": 3e-3, "actor_lr": 3e-3, "num_actions": 4, "total_updates": 500}
    settings |= {"initial_temperature": 0.01, "temperature_lr": 0.0}
    plain, _ = baits_taken("cql", True, penalty=0.0, **settings)
    conservative, _ = baits_taken("cql", True, penalty=5.0, **settings)
    assert (plain, conservative) == (9, 0)
