"""Dueling and noisy DQN, C51, QR-DQN, IQN and Rainbow: the losses by hand, and compiled as in torch."""

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import Spaces, build_agent
from raceway.agents.noisy_networks import NoisyLinear, with_noise
from raceway.agents.q_heads import Atoms, Quantiles
from raceway.algorithms import c51, double_dqn, dqn, dueling_dqn, find_algorithm, iqn, noisy_dqn, qr_dqn, rainbow
from raceway.errors import ConfigError
from raceway.learner.learner import Learner, tensors_of
from raceway.learner.objectives import Target
from raceway.ops import ReplayShard
from raceway.rl import Batch
from raceway.training.train import train

SPACES = Spaces(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
NUMS = (3, 4, 5)
LOSSES: dict[str, Any] = {
    "dueling_dqn": dueling_dqn.loss, "c51": c51.loss, "qr_dqn": qr_dqn.loss, "iqn": partial(iqn.loss, nums=NUMS),
    "noisy_dqn": noisy_dqn.loss, "rainbow": rainbow.loss,
}  # fmt: skip
TWO_ROWS: Batch = {
    "obs": torch.zeros(2, 3), "next_obs": torch.ones(2, 3), "action": torch.tensor([0, 1]),
    "reward": torch.tensor([0.5, 2.0]), "discount": torch.tensor([0.5, 0.0]), "weight": torch.tensor([2.0, 1.0]),
}  # fmt: skip


class FixedAgent(nn.Module):
    """Has given distributions of both actions in s and s', the same in every row."""

    def __init__(self, readout: Any, now: Any, after: Any, target: Any = None) -> None:
        super().__init__()
        self.readout, self.now, self.after = readout, torch.tensor(now), torch.tensor(after)
        self.__dict__["target"] = target

    def action_index(self, batch: Any) -> Tensor:
        return batch["action"]

    def distributions(self, obs: Tensor) -> Tensor:
        values = self.after if obs.any() else self.now
        return values.expand(len(obs), -1, -1)

    def expected(self, distributions: Tensor, obs: Tensor) -> Tensor:
        return self.readout.expected(distributions)


def atoms_agent() -> FixedAgent:
    """Return an agent with three atoms, whose network prefers the first action in s', and whose target the second."""

    def logs(*probabilities: Any) -> Any:
        return [[math.log(each) for each in action] for action in probabilities]

    readout, online = Atoms(2, 3, 0.0, 2.0), logs((0.5, 0.25, 0.25), (0.25, 0.25, 0.5))
    target = FixedAgent(readout, online, logs((0.2, 0.6, 0.2), (0.25, 0.25, 0.5)))
    return FixedAgent(readout, online, logs((0.1, 0.1, 0.8), (0.8, 0.1, 0.1)), target)


def test_c51_by_hand() -> None:
    # The target network's means in s' are 1 and 1.25, so a' = 1 with (1/4, 1/4, 1/2) on the returns 0.5, 1 and 1.5. Of
    # these the first and the last are halfway between two atoms: m = (1/8, 1/8 + 1/4 + 1/4, 1/4). Row two: r alone.
    first = 1 / 8 * math.log(2) + 5 / 8 * math.log(4) + 1 / 4 * math.log(4)
    second = math.log(2)
    loss, metrics = c51.loss(atoms_agent(), TWO_ROWS)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx((first + second) / 2)
    assert metrics["q_values"].item() == pytest.approx(((0.25 + 0.5) + (0.25 + 1.0)) / 2)


def test_rainbow_by_hand() -> None:
    # The network chooses a' = 0, which the target network has as (0.2, 0.6, 0.2): m = (0.1, 0.1 + 0.6 + 0.1, 0.1).
    first, second = 0.1 * math.log(2) + 0.9 * math.log(4), math.log(2)
    output = rainbow.loss(atoms_agent(), TWO_ROWS, random=torch.Generator())  # type: ignore[arg-type]
    assert output.value.item() == pytest.approx((2 * first + second) / 2)
    assert output.priorities is not None
    assert output.priorities.tolist() == pytest.approx([first, second]), "without the importance weights"


def test_qr_dqn_by_hand() -> None:
    readout, online = Quantiles(2, 2), [[1.0, 3.0], [0.0, 1.0]]
    agent = FixedAgent(readout, online, online, FixedAgent(readout, online, [[0.0, 2.0], [1.0, 3.0]]))
    batch = TWO_ROWS | {"reward": torch.tensor([1.0, 0.0])}
    # a' = 1 by the means 1 and 2: the targets are 1 + 0.5 · 1 and 1 + 0.5 · 3. Fractions 0.25 and 0.75, Huber u²/2 or
    # |u| - 1/2. Of the quantile 1, u is 0.5 and 1.5; of 3, u is -1.5 and -0.5.
    first = (0.25 * 0.125 + 0.25 * 1.0) / 2 + (0.25 * 1.0 + 0.25 * 0.125) / 2
    second = 0.0 + 0.25 * 0.5  # the target is 0; of the quantile 1, u is -1
    loss, metrics = qr_dqn.loss(agent, batch)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx((first + second) / 2)
    assert metrics["q_values"].item() == pytest.approx((2 + 0.5) / 2)


def test_iqn_by_hand() -> None:
    """With quantiles that are lines in τ: of the second action in s', 1 + 2τ; of the first in s, 3τ; else 0."""

    def network(now: Any, after: Any) -> Any:
        def line(features: Tensor, fractions: Tensor) -> Tensor:
            table = torch.tensor(after if features.any() else now)  # [2 actions, offset and slope]
            return table[:, :1] + table[:, 1:] * fractions[:, None, :]

        def expected(features: Tensor, fractions: Tensor, obs: Tensor) -> Tensor:
            assert fractions.shape == (2, 3)
            return line(features, fractions).mean(-1)

        functions = {"features": lambda obs: obs, "action_index": lambda batch: batch["action"], "expected": expected}
        return SimpleNamespace(head=SimpleNamespace(quantiles=line), **functions)

    agent = network([[0.0, 3.0], [0.0, 0.0]], [[9.0, 0.0], [0.0, 0.0]])
    agent.target = network([[0.0, 0.0]] * 2, [[0.0, 0.0], [1.0, 2.0]])
    loss, _ = iqn.loss(agent, TWO_ROWS, nums=(2, 1, 3), random=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(0)
    fractions, next_fractions = torch.rand(2, 2, generator=random).tolist(), torch.rand(2, 1, generator=random).tolist()
    expected = 0.0
    for tau in fractions[0]:
        error = 0.5 + 0.5 * (1 + 2 * next_fractions[0][0]) - 3 * tau
        huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
        expected += abs(tau - (error < 0)) * huber / 2
    for tau in fractions[1]:
        expected += tau * (2.0 - 0.5) / 2  # the quantile is 0 and the target 2
    assert loss.item() == pytest.approx(expected, rel=1e-5)


# Real networks.


def make(name: str, **settings: Any) -> Any:
    algorithm = find_algorithm(name)
    small = {"num_atoms": 7, "num_quantiles": 5, "num_action_quantiles": 6, "num_cosines": 8, "hidden": (16, 8)}
    known = {key: size for key, size in small.items() if hasattr(algorithm.config, key)}
    return build_agent(algorithm.agent, SPACES, algorithm.settings(**{**known, **settings}))


def batch(num_rows: int = 32, seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    rows: Batch = {name: random.normal(size=(num_rows, 3)).astype(np.float32) for name in ("obs", "next_obs")}
    rows |= {name: random.random(num_rows, np.float32) for name in ("reward", "discount", "weight")}
    return rows | {"action": random.integers(0, 2, num_rows)}


@pytest.mark.parametrize("name", LOSSES)
def test_compiled_losses_train_as_torch_does(name: str) -> None:
    learners = [Learner(make(name), 1e-2, seed=3, compiled=compiled) for compiled in (True, False)]
    for seed in range(4):
        outputs = [learner.train(LOSSES[name], batch(seed=seed), targets=[Target(every=2)]) for learner in learners]
        assert outputs[0].metrics["loss"] == pytest.approx(outputs[1].metrics["loss"], rel=1e-3)
    compiled, plain = learners
    assert compiled._compiled_losses is not None
    assert not compiled._compiled_losses.refused
    for ours, theirs in zip(compiled.agent.parameters(), plain.agent.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=2e-3)
    assert torch.equal(compiled.random.get_state(), plain.random.get_state())


@pytest.mark.parametrize("name", LOSSES)
def test_every_parameter_is_trained_and_nothing_else(name: str) -> None:
    agent = make(name)
    learner = Learner(agent, 1e-2, seed=1)
    learner.train(LOSSES[name], batch(), targets=[Target(every=100)])
    untrained = build_agent(lambda *_: make(name), SPACES, None)
    changed = {key for key, array in agent.weights().items() if (array != untrained.weights()[key]).any()}
    assert changed == {key for key in agent.weights() if not key.endswith(".support")}
    for array, target in zip(untrained.weights().values(), agent.target.weights().values(), strict=True):
        np.testing.assert_array_equal(array, target)


def test_without_deviations_the_noisy_loss_is_that_of_dqn() -> None:
    agent, rows = make("noisy_dqn"), tensors_of(batch())
    agent.make_target(None)
    for module in (agent, agent.target):
        for layer in [layer for layer in module.modules() if isinstance(layer, NoisyLinear)]:
            layer.weight_sigma.data.zero_()
            layer.bias_sigma.data.zero_()
    noisy, _ = noisy_dqn.loss(agent, rows, random=torch.Generator())
    torch.testing.assert_close(noisy, dqn.loss(agent, rows)[0])


def test_the_network_and_the_target_network_have_noise_of_their_own() -> None:
    agent, rows = make("noisy_dqn"), tensors_of(batch())
    agent.make_target(None)
    loss, _ = noisy_dqn.loss(agent, rows, random=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(1)
    with with_noise(agent.target, random):
        target = rows["reward"] + rows["discount"] * agent.target.actor(rows["next_obs"], {})[0].amax(-1)
    with with_noise(agent, random):
        q_values = agent.actor(rows["obs"], {})[0].gather(1, rows["action"][:, None])[:, 0]
    torch.testing.assert_close(loss, nn.functional.smooth_l1_loss(q_values, target))


def test_the_dueling_loss_is_that_of_double_dqn() -> None:
    agent, rows = make("dueling_dqn"), tensors_of(batch())
    agent.make_target(None)
    loss, metrics = dueling_dqn.loss(agent, rows)
    expected, expected_metrics = double_dqn.loss(agent, rows)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(metrics["q_values"], expected_metrics["q_values"])


@pytest.mark.parametrize("name", ["c51", "rainbow"])
def test_atoms_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="v_min 10 must be below v_max 10"):
        make(name, v_min=10.0, v_max=10.0)
    with pytest.raises(ConfigError, match="at least 2 atoms"):
        make(name, num_atoms=1)


def test_rainbow_has_no_queue_that_samples_could_overtake_priorities_in() -> None:
    with pytest.raises(ConfigError, match="learner_queue"):
        find_algorithm("rainbow").settings(learner_queue=2)


@pytest.mark.parametrize(("name", "shards", "end"), [("rainbow", 1, 1.0), ("apex", 2, None), ("apex", 2, 0.9)])
def test_beta_rises_over_the_run_by_the_rows_of_a_shard(name: str, shards: int, end: float | None) -> None:
    settings: dict[str, Any] = {"beta_end": end, "replay_shards": shards} if name == "apex" else {}
    for total in (None, 1000):
        cfg = find_algorithm(name).settings(env="pendulum", total_timesteps=total, **settings)
        sampler: Any = cfg.replay_settings.make(0).sampler
        changes = total is not None and end is not None
        assert sampler.beta(1000 // shards // 2) == pytest.approx((0.4 + end) / 2 if changes and end else 0.4)
        assert sampler.beta(1000) == pytest.approx(end if changes else 0.4)


@pytest.mark.parametrize("place", ["driver", "thread", "actor"])
def test_priorities_arrive_before_the_next_batch_is_sampled(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def logged(name: str) -> Any:
        call = getattr(ReplayShard, name)

        def run(shard: ReplayShard, *args: Any) -> Any:
            result = call(shard, *args)
            calls.append(name)
            return result

        return run

    for name in ("sample", "update"):
        monkeypatch.setattr(ReplayShard, name, logged(name))
    settings: dict[str, Any] = {"num_envs": 4, "fragment_steps": 8, "learning_starts": 64, "steps_per_update": 8}
    settings |= {"batch_size": 16, "hidden": (8,), "learner_on": place, "engine": "inline", "run_dir": tmp_path / "run"}
    train("rainbow", iterations=6, progress=False, **settings)
    assert calls[:10] == ["sample", "update"] * 5
