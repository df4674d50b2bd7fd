"""Training TorchRL's losses in flows."""

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.data import Bounded, Categorical
from torchrl.modules import ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss, SACLoss
from torchrl.objectives.common import LossModule
from torchrl.objectives.value import GAE

from raceway.errors import ConfigError
from raceway.flow import Iter
from raceway.replay import Replay
from raceway.rl import Batch
from raceway.state import restore, state_of
from raceway.torchrl import TrainLossModule, to_tensordict


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs))


def dqn(**options: Any) -> TrainLossModule:
    torch.manual_seed(0)
    actor = QValueActor(mlp(4, 2), in_keys=["observation"], spec=Categorical(2))
    return TrainLossModule(DQNLoss(actor, delay_value=True, **options), lr=1e-2, tau=0.05, max_grad_norm=10)


def gaussian(obs: int, actions: int) -> ProbabilisticActor:
    network = nn.Sequential(mlp(obs, 2 * actions), NormalParamExtractor())
    module = TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"])
    spec = Bounded(-1.0, 1.0, shape=(actions,))
    return ProbabilisticActor(
        module,
        spec=spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=True,
    )


def ppo() -> tuple[TrainLossModule, ProbabilisticActor]:
    torch.manual_seed(0)
    actor, critic = gaussian(3, 1), ValueOperator(mlp(3, 1), in_keys=["observation"])
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic)
    return TrainLossModule(ClipPPOLoss(actor, critic), lr=3e-3, max_grad_norm=1.0, advantage=advantage), actor


class QValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(4, 1)

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([obs, action], -1))


def sac(seed: int = 0) -> TrainLossModule:
    torch.manual_seed(0)
    actor = gaussian(3, 1)
    qvalue = ValueOperator(QValue(), in_keys=["observation", "action"])
    loss = SACLoss(actor, qvalue, action_spec=Bounded(-1.0, 1.0, shape=(1,)))
    return TrainLossModule(loss, lr=1e-2, tau=0.01, seed=seed)


def one_step_transitions(num: int, seed: int = 0) -> Batch:
    """Return one-step episodes whose reward is highest for the action 0."""
    rng = np.random.default_rng(seed)
    action = rng.uniform(-1, 1, (num, 1)).astype(np.float32)
    return {
        "obs": rng.standard_normal((num, 3)).astype(np.float32),
        "action": action,
        "reward": 1 - 3 * np.abs(action[:, 0]),
        "next_obs": rng.standard_normal((num, 3)).astype(np.float32),
        "terminated": np.ones(num, bool),
        "index": np.arange(num),
    }


def parameters(train: TrainLossModule) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in train.loss.parameters()])


# DQN, PPO and SAC in flows.


def test_dqn_on_replayed_transitions() -> None:
    rng, replay = np.random.default_rng(0), Replay(1000, seed=0, alpha=0.6)
    obs = rng.standard_normal((1000, 4)).astype(np.float32)
    action = rng.integers(0, 2, 1000)
    reward = np.where(action == (obs[:, 0] > 0), 1.0, -1.0).astype(np.float32)
    terminated = np.ones(1000, bool)
    replay.insert({"obs": obs, "action": action, "reward": reward, "next_obs": obs, "terminated": terminated})
    train = dqn()
    before = parameters(train)
    flow = Iter.from_items(lambda: (replay.sample(128) for _ in range(150))).for_each(train)
    stats = list(flow)
    losses = [row.metrics["train/loss"] for row in stats]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    assert not torch.equal(parameters(train), before)
    assert "train/grad_norm" in stats[0].metrics
    assert stats[0].num_steps == 0, "replayed steps were counted when they were collected"
    assert len(stats[0].returns) == len(stats[0].lengths) == 0
    assert stats[0].seconds["train"] > 0
    assert stats[0].priorities is not None
    index, priorities = stats[0].priorities
    assert index.shape == priorities.shape == (128,)
    replay.update(index, priorities)


def collect(actor: ProbabilisticActor, rng: np.random.Generator, num_steps: int = 16, num_envs: int = 8) -> Batch:
    """Return a fragment, [T, B], whose reward is highest for the action 0."""
    obs = rng.standard_normal((num_steps + 1, num_envs, 3)).astype(np.float32)
    with torch.no_grad():
        sampled = actor(TensorDict({"observation": torch.from_numpy(obs[:-1])}, [num_steps, num_envs]))
    action = sampled["action"].numpy()
    return {
        "obs": obs[:-1],
        "action": action,
        "action_log_prob": sampled["action_log_prob"].numpy(),
        "reward": (1 - 3 * np.abs(action[..., 0])).astype(np.float32),
        "terminated": np.zeros((num_steps, num_envs), bool),
        "truncated": np.zeros((num_steps, num_envs), bool),
        "last_obs": obs[-1],
        "final_obs": np.empty((0, 3), np.float32),
        "episode_return": np.array([1.0, 2.0]),
        "episode_length": np.array([3, 4]),
    }


def test_ppo_on_fragments_that_its_actor_collects() -> None:
    train, actor = ppo()
    rng, rewards = np.random.default_rng(0), []

    def collect_fragment(number: int) -> Batch:
        batch = collect(actor, rng)
        rewards.append(batch["reward"].mean())
        return batch

    stats = list(Iter.from_range(150).for_each(collect_fragment).for_each(train))
    assert np.mean(rewards[-10:]) > np.mean(rewards[:10]) + 0.3
    assert {"train/loss_objective", "train/loss_critic", "train/loss_entropy", "train/loss"} <= stats[0].metrics.keys()
    assert stats[0].num_steps == 16 * 8
    assert stats[0].returns.tolist() == [1.0, 2.0]
    assert stats[0].lengths.tolist() == [3, 4]
    assert stats[0].priorities is None


def test_sac_on_a_fixed_batch() -> None:
    train, batch = sac(), one_step_transitions(256)
    before = parameters(train)
    stats = list(Iter.from_items([batch] * 200).for_each(train))
    assert {"train/loss_actor", "train/loss_qvalue", "train/loss_alpha", "train/loss"} <= stats[0].metrics.keys()
    losses = [row.metrics["train/loss_qvalue"] for row in stats]
    assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[:10])
    assert not torch.equal(parameters(train), before)
    total = sum(value for name, value in stats[0].metrics.items() if name.startswith("train/loss_"))
    assert stats[0].metrics["train/loss"] == pytest.approx(total, rel=1e-5)


# State.


def make_training(kind: str) -> tuple[TrainLossModule, Callable[[int], Batch | TensorDictBase]]:
    """Return the operator, and a function that returns the batch of each step."""
    if kind == "dqn":
        data = TensorDict(
            {
                "observation": torch.randn(32, 4),
                "action": torch.randint(0, 2, (32,)),
                "next": {
                    "observation": torch.randn(32, 4),
                    "reward": torch.randn(32, 1),
                    "terminated": torch.zeros(32, 1, dtype=torch.bool),
                    "done": torch.zeros(32, 1, dtype=torch.bool),
                },
            },
            [32],
        )
        return dqn(), lambda number: data[: 20 + number].clone()
    if kind == "ppo":
        train, actor = ppo()
        fixed = copy.deepcopy(actor)
        return train, lambda number: collect(fixed, np.random.default_rng(number))
    return sac(), lambda number: one_step_transitions(32, seed=number)


@pytest.mark.parametrize("kind", ["dqn", "ppo", "sac"])
def test_state_round_trip(kind: str) -> None:
    first, make_batch = make_training(kind)
    batches = {}

    def batch(number: int) -> Batch | TensorDictBase:
        if number not in batches:
            torch.manual_seed(number)
            batches[number] = make_batch(number)
        cached = batches[number]
        return cached.clone() if isinstance(cached, TensorDictBase) else cached

    for number in range(3):
        first(batch(number))
    saved = copy.deepcopy(state_of(first))
    assert is_plain(saved)
    before = copy.deepcopy(saved)
    second = make_training(kind)[0]
    second(batch(7))
    restore(second, saved)
    assert torch.equal(parameters(first), parameters(second))
    for number in range(3, 6):
        torch.manual_seed(99 - number)  # torch's global generator must not matter
        metrics = first(batch(number)).metrics
        torch.manual_seed(number)
        assert second(batch(number)).metrics == metrics
    assert torch.equal(parameters(first), parameters(second))
    np.testing.assert_equal(saved, before, "training after `restore` changed the state that was restored")


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_plain(part) for part in (*value, *value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, np.ndarray))


def test_the_loss_uses_its_own_random_generator() -> None:
    batch = one_step_transitions(64)
    torch.manual_seed(5)
    train = sac(seed=1)
    before = torch.get_rng_state()
    first = train(batch).metrics["train/loss_actor"]
    assert torch.equal(torch.get_rng_state(), before)
    assert sac(seed=1)(batch).metrics["train/loss_actor"] == first
    assert sac(seed=2)(batch).metrics["train/loss_actor"] != first


def test_soft_update_of_the_target() -> None:
    train = dqn()
    value, target = train.loss.value_network_params, train.loss.target_value_network_params
    weights = [[part["module", "0", "module", "0", "weight"].detach().clone() for part in (value, target)]]
    data = make_training("dqn")[1](0)
    for _ in range(3):
        train(data.clone())
        weights.append([part["module", "0", "module", "0", "weight"].detach().clone() for part in (value, target)])
    for (_, before), (now, after) in pairwise(weights):
        assert torch.allclose(after, before + 0.05 * (now - before), atol=1e-6)
        assert not torch.equal(after, before)


# Errors.


class Silent(LossModule):
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        return TensorDict({"entropy": torch.zeros(())})


def test_invalid_arguments_are_rejected() -> None:
    actor = QValueActor(mlp(4, 2), in_keys=["observation"], spec=Categorical(2))
    with pytest.raises(ConfigError, match=r"DQNLoss has target parameters that nothing updates. Pass tau"):
        TrainLossModule(DQNLoss(actor, delay_value=True))
    with pytest.raises(ConfigError, match=r"DQNLoss has no target parameters for tau=0.1"):
        TrainLossModule(DQNLoss(actor, delay_value=False), tau=0.1)
    for tau in (0, 1.5, -1):
        with pytest.raises(ConfigError, match="tau must be a number above 0 and up to 1"):
            TrainLossModule(DQNLoss(actor, delay_value=True), tau=tau)
    for option in ("lr", "max_grad_norm"):
        with pytest.raises(ConfigError, match=f"{option} must be a number above 0"):
            TrainLossModule(DQNLoss(actor, delay_value=True), tau=0.1, **{option: -1.0})
    silent = Silent()
    silent.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    with pytest.raises(ConfigError, match=r"Silent returned \['entropy'\], none of which begins with 'loss'"):
        TrainLossModule(silent)(to_tensordict(one_step_transitions(4)))


def test_one_hot_actions() -> None:
    torch.manual_seed(0)
    actor = QValueActor(mlp(4, 2), in_keys=["observation"], action_space="one_hot")
    train = TrainLossModule(DQNLoss(actor, delay_value=True, action_space="one_hot"), tau=0.1, num_actions=2)
    rng = np.random.default_rng(0)
    batch = {
        "obs": rng.standard_normal((8, 4)).astype(np.float32),
        "action": rng.integers(0, 2, 8),
        "reward": np.ones(8, np.float32),
        "next_obs": rng.standard_normal((8, 4)).astype(np.float32),
        "terminated": np.zeros(8, bool),
    }
    losses = [train(batch).metrics["train/loss"] for _ in range(20)]
    assert losses[-1] < losses[0]
