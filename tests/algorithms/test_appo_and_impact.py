"""APPO and IMPACT: their losses by hand, PPO's gradient, the target policy, and known answers."""

import copy
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import raceway
from raceway.agents import ActorCritic, Categorical
from raceway.algorithms import appo, find_algorithm, impact, ppo
from raceway.envs import EnvSettings, SoftBandit
from raceway.learner.learner import Learner, gradients_of, tensors_of
from raceway.learner.objectives import Target
from raceway.ops import AddAdvantages, AddLogProbs, ConcatFragments, RolloutSettings, RolloutWorker
from raceway.rl import Fragment, Rows
from raceway.training.train import Training
from tests.example_agents import makes_actor_critic

GAMMA, LAM = 0.9, 0.8
LOSSES = pytest.mark.parametrize("algorithm", [appo, impact], ids=["appo", "impact"])


# The losses by hand.


def fixed_agent() -> Any:
    """Return an agent with given probabilities, in a fragment of two steps and one slot, of two actions."""
    policy, target = (torch.log(torch.tensor([[[p, 1 - p]], [[q, 1 - q]]])) for p, q in [(0.3, 0.1), (0.2, 0.2)])
    values, last_value = torch.tensor([[2.0], [4.0]]), torch.tensor([6.0])
    return SimpleNamespace(
        evaluate_fragment=lambda batch: (policy, values, last_value),
        actor=SimpleNamespace(distribution=Categorical(spaces.Discrete(2))),
        target=SimpleNamespace(fragment_params=lambda batch: target),
    )


@pytest.mark.parametrize(
    ("algorithm", "policy_loss", "clip_fraction"),
    [
        # ρ = π/π' = 1.5 and 0.5, clipped to 1.4 and 0.6: -(1.4 · 1 - 0.6 · 2) / 2
        (appo, -0.1, 1.0),
        # The first μ/π' is 4, more than 2, so that ρ = 2 π/μ = 0.75: -(0.75 · 1 - 0.6 · 2) / 2
        (impact, 0.225, 0.5),
    ],
)
def test_the_loss_by_hand(algorithm: Any, policy_loss: float, clip_fraction: float) -> None:
    batch = {
        "action": torch.zeros(2, 1, dtype=torch.int64),
        "log_prob": torch.log(torch.tensor([[0.8], [0.1]])),
        "reward": torch.tensor([[5.0], [-1.0]]),
        "bootstrap": torch.zeros(2, 1),
        "ended": torch.zeros(2, 1, dtype=torch.bool),
    }
    # V-trace: π'/μ = 1/4, and 2, clipped to 1. δ = (5 + 4/2 - 2) / 4 and -1 + 6/2 - 4. v - V = 5/4 - 2/8 and -2.
    cfg = algorithm.Config(gamma=0.5, lam=1.0, clip=0.4, value_coef=0.5, entropy_coef=0.1)
    value, metrics = algorithm.loss(fixed_agent(), batch, cfg)
    value_loss = (1.0**2 + 2.0**2) / 2
    entropy = -sum(p * math.log(p) for p in (0.3, 0.7, 0.1, 0.9)) / 2
    expected = {
        "policy_gradient_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": -entropy,
        "clip_fraction": clip_fraction,
    }
    assert {name: float(metric) for name, metric in metrics.items()} == pytest.approx(expected)
    assert float(value) == pytest.approx(policy_loss + 0.5 * value_loss - 0.1 * entropy)


# PPO's gradient.


def collect(env: str, network: str) -> tuple[ActorCritic, Fragment, Rows]:
    """Return an agent, a fragment that it has collected, and its rows with PPO's advantages."""
    agent = makes_actor_critic(network, (8,))
    short = EnvSettings(env, {"max_episode_steps": 5})  # so that episodes are truncated
    settings = RolloutSettings(env=short, agent=agent, num_shards=1, slots_per_shard=4, fragment_steps=12)
    worker, shard = RolloutWorker(settings), SimpleNamespace(number=0)
    for number in range(2):  # the second fragment begins in the middle of episodes
        batch = worker.sample(shard=shard, number=number)  # type: ignore[arg-type]
    (fragment,) = ConcatFragments()(AddLogProbs(GAMMA)(batch, actor=worker))
    rows = AddAdvantages(GAMMA, LAM)(batch, actor=worker)
    worker.close()
    assert isinstance(worker.agent, ActorCritic)
    return copy.deepcopy(worker.agent), fragment, rows


def move(agent: ActorCritic) -> None:
    """Change the policy, and not the values that share its layers."""
    generator = torch.Generator().manual_seed(1)
    network: Any = agent.actor.network
    layers, size = (network.head, 2.0) if agent.actor.recurrent else (network, 0.6)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("moved", [False, True], ids=["on-policy", "after steps"])
@pytest.mark.parametrize("network", ["mlp", "lstm"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@LOSSES
def test_the_gradient_is_ppos_if_the_target_policy_is_the_behaviour_policy(
    algorithm: Any, env: str, network: str, moved: bool
) -> None:
    """Also where the trained policy has moved away from both, and its ratio is clipped."""
    agent, fragment, rows = collect(env, network)
    agent.make_target(("actor",))
    if moved:
        move(agent)
    shared: dict[str, Any] = {"env": env, "gamma": GAMMA, "lam": LAM, "clip": 0.2, "entropy_coef": 0.01}
    actual, metrics = gradients_of(agent, partial(algorithm.loss, cfg=algorithm.Config(**shared)), fragment)
    expected, ppo_metrics = gradients_of(agent, partial(ppo.loss, cfg=ppo.Config(**shared)), rows)
    assert actual.keys() == expected.keys() == dict(agent.named_parameters()).keys()
    largest = max(float(np.abs(gradient).max()) for gradient in expected.values())
    for name, gradient in expected.items():
        np.testing.assert_allclose(actual[name], gradient, rtol=0, atol=1e-6 * max(largest, 1), err_msg=name)
    for name in ("loss", "policy_gradient_loss", "value_loss", "entropy_loss", "clip_fraction"):
        assert metrics[name] == pytest.approx(ppo_metrics[name], rel=1e-5, abs=1e-6), name
    assert (metrics["clip_fraction"] > 0.1) == moved


@LOSSES
def test_invalid_steps_do_not_count(algorithm: Any) -> None:
    agent, fragment, _ = collect("CartPole-v1", "mlp")
    agent.make_target(("actor",))
    move(agent)
    loss = partial(algorithm.loss, cfg=algorithm.Config())
    alone = {
        name: column[:, :3] for name, column in fragment.items() if name in ("obs", "action", "log_prob", "reward")
    }
    alone |= {"ended": fragment["ended"][:, :3], "bootstrap": fragment["bootstrap"][:, :3]}
    expected, metrics = gradients_of(agent, loss, {**alone, "last_obs": fragment["last_obs"][:3]})
    valid = np.ones_like(fragment["ended"])
    valid[:, 3] = False
    actual, others = gradients_of(agent, loss, {**fragment, "valid": valid})
    for name, gradient in expected.items():
        np.testing.assert_allclose(actual[name], gradient, atol=1e-6, err_msg=name)
    assert others == pytest.approx(metrics, rel=1e-5)


# The target policy.


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_the_target_policy_is_evaluated_like_the_trained_one(network: str) -> None:
    agent, fragment, _ = collect("CartPole-v1", network)
    agent.make_target(("actor",))
    batch = tensors_of(fragment)
    with torch.no_grad():
        expected, _, _ = agent.evaluate_fragment(batch)
        before = agent.target.fragment_params(batch)
        torch.testing.assert_close(before, expected, rtol=1e-5, atol=1e-6)
        move(agent)
        assert (agent.fragment_params(batch) - before).abs().max() > 0.1
        torch.testing.assert_close(agent.target.fragment_params(batch), before)


@LOSSES
def test_it_has_no_gradient_and_changes_with_its_updates_only(algorithm: Any) -> None:
    agent, fragment, _ = collect("CartPole-v1", "mlp")
    learner, loss = Learner(agent, 0.01), partial(algorithm.loss, cfg=algorithm.Config())
    half = [Target("actor", tau=0.5, every=3)]
    learner.prepare({}, half)
    initial = {name: array.copy() for name, array in agent.actor.weights().items()}
    assert set(agent.target._modules) == {"actor"}
    for number in range(1, 4):
        learner.train(loss, fragment, targets=half)
        assert all(parameter.grad is None for parameter in agent.target.parameters())
        for name, trained in agent.actor.weights().items():
            expected = initial[name] if number < 3 else (initial[name] + trained) / 2
            np.testing.assert_allclose(agent.target.actor.weights()[name], expected, atol=1e-7)
    assert any((initial[name] != trained).any() for name, trained in agent.actor.weights().items())


@pytest.mark.parametrize(("name", "steps"), [("appo", {"num_epochs": 2}), ("impact", {"batch_uses": 3})])
def test_the_plan_updates_it_every_n_gradient_steps(name: str, steps: dict[str, int]) -> None:
    algorithm = find_algorithm(name)
    size = {"num_envs": 4, "num_shards": 1, "fragment_steps": 4, "batch_steps": 16, "hidden": (8,), "num_batches": 1}
    used = {key: value for key, value in {**size, **steps}.items() if hasattr(algorithm.config, key)}
    cfg = algorithm.settings(env="cartpole", engine="inline", iterations=9, target_every=4, lr=0.01, **used)
    training = Training(algorithm, cfg)
    initial, seen = training.agent.actor.sha256(), set()
    with training.open_flow(run=True) as flow:
        for _ in flow.take(7):
            version, target, trained = training.learner.version, training.agent.target.actor, training.agent.actor
            seen.add(version % 4)
            assert (target.sha256() == initial) == (version < 4)
            assert (target.sha256() == trained.sha256()) == (version % 4 == 0)
    assert {0} < seen


@pytest.mark.parametrize("place", ["thread", "actor"])
@pytest.mark.parametrize(("name", "steps"), [("appo", {"num_epochs": 2}), ("impact", {"num_batches": 1})])
def test_a_remote_learner_has_the_target_policy_and_is_resumed(
    name: str, steps: dict[str, int], place: str, tmp_path: Path
) -> None:
    size = {"num_envs": 4, "num_shards": 2, "fragment_steps": 4, "batch_steps": 16, "hidden": (8,), "target_every": 3}
    settings: dict[str, Any] = {"env": "cartpole", "engine": "inline", "num_workers": 1, "progress": False, **size}
    result = raceway.train(name, learner_on=place, iterations=6, run_dir=tmp_path / "run", **settings, **steps)
    lags = [row["train/policy_lag"] for row in result.metrics]
    assert max(lags) > 0
    assert result.summary["timesteps"] == 6 * 16
    assert result.summary["weights_sha256"] == result.policy.sha256()
    resumed = raceway.resume(tmp_path / "run", iterations=9, progress=False).summary
    assert (resumed["resumed_at"], resumed["timesteps"]) == (6 * 16, 9 * 16)
    assert resumed["weights_sha256"] != result.summary["weights_sha256"]


# Known answers.

LEARNT: dict[str, Any] = {
    "engine": "inline", "num_workers": 1, "seed": 1, "progress": False, "num_envs": 16, "num_shards": 2,
    "hidden": (32,), "fragment_steps": 8, "batch_steps": 128, "target_every": 4, "lr": 0.01, "lr_end": 0.0,
}  # fmt: skip
USES: dict[str, dict[str, Any]] = {"appo": {"num_epochs": 4}, "impact": {"num_batches": 2, "batch_uses": 4}}


@pytest.mark.parametrize("name", USES)
def test_the_softmax_policy_of_a_bandit(name: str, tmp_path: Path) -> None:
    """With an entropy bonus α H the best policy is softmax(r/α)."""
    settings = {**LEARNT, **USES[name], "env": "raceway/SoftBandit-v0", "total_timesteps": 10_000}
    result = raceway.train(name, entropy_coef=0.5, run_dir=tmp_path / "run", **settings)
    with torch.no_grad():
        params, _ = result.policy.agent.actor(torch.zeros(1, dtype=torch.int64), {})
    expected = SoftBandit().soft_policy(alpha=0.5)
    np.testing.assert_allclose(params.softmax(-1)[0].numpy(), expected, atol=0.03)


@pytest.mark.parametrize("name", USES)
def test_the_best_continuous_action(name: str, tmp_path: Path) -> None:
    settings = {**LEARNT, **USES[name], "env": "raceway/Identity-v0", "total_timesteps": 10_000}
    result = raceway.train(name, entropy_coef=0.0, run_dir=tmp_path / "run", **settings)
    states = np.linspace(-0.9, 0.9, 19, dtype=np.float32)[:, None]
    actions = np.array([result.policy.act(state) for state in states])
    assert np.abs(actions - states).mean() < 0.15
