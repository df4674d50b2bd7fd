"""The learner: on the driver, on a thread, in an actor, on a device."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import ActorCritic
from raceway.agents.networks import Encoder, mlp
from raceway.algorithms import find_algorithm
from raceway.autograd.tape import Tape, use_tape
from raceway.errors import ConfigError
from raceway.learner.learner import Learner, minibatches
from raceway.rl import Batch
from raceway.training.train import Training, train
from tests.example_agents import example_actor_critic

OBS_SPACE, ACTION_SPACE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
ROWS = {"obs": np.ones((4, 3), np.float32), "action": np.zeros(4, np.int64)}
SETTINGS = {
    "env": "cartpole", "num_envs": 4, "num_shards": 2, "fragment_steps": 4, "hidden": (8,), "activation": None,
    "shared_layers": False, "scale_rewards": False, "num_async": 1, "lr": 0.01, "total_timesteps": None,
}  # fmt: skip


def example_agent() -> ActorCritic:
    return example_actor_critic(OBS_SPACE, ACTION_SPACE, hidden=(4,))


def example_loss(agent: ActorCritic, batch: Batch) -> Tensor:
    params, values = agent.evaluate(batch)
    return params.square().mean() + (values - 1).square().mean()


def impala_training(learner_on: str, engine: str, **settings: Any) -> Training:
    algorithm = find_algorithm("impala")
    workers = {"num_workers": 2} if engine == "process" else {}
    return Training(
        algorithm, algorithm.settings(**SETTINGS, **workers, engine=engine, learner_on=learner_on, **settings)
    )


@pytest.mark.parametrize("engine", ["inline", "process"])
@pytest.mark.parametrize("learner_on", ["driver", "thread", "actor"])
def test_the_learner_trains_on_the_driver_a_thread_or_an_actor(learner_on: str, engine: str) -> None:
    training = impala_training(learner_on, engine, iterations=30)
    before = training.agent.sha256()
    with training.open_flow(run=True) as flow:
        lags = [row["train/policy_lag"] for row in flow.take(30)]
    assert training.agent.sha256() != before
    assert training.learner.version >= 30
    if engine == "inline":  # two shards, each one fragment ahead; a remote learner has two more batches queued
        assert max(lags) <= (2 if learner_on == "driver" else 6)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in training.agent.parameters())


def test_the_result_has_the_weights_trained_in_an_actor() -> None:
    result = train("impala", **SETTINGS, engine="inline", learner_on="actor", iterations=5)
    untrained = impala_training("driver", "inline").agent
    assert result.summary["weights_sha256"] == result.policy.sha256() != untrained.sha256()


def test_a_pickled_learner_trains_like_the_original() -> None:
    original = Learner(example_agent(), 0.1, max_grad_norm=1.0)
    original.train(example_loss, ROWS)
    unpickled = pickle.loads(pickle.dumps(original))
    for learner in (original, unpickled):
        learner.train(example_loss, ROWS)
    assert unpickled.version == 2
    assert unpickled.agent.sha256() == original.agent.sha256()


def test_published_weights_do_not_change() -> None:
    learner = Learner(example_agent(), 0.1, remote=True)
    assert learner.published_weights[0] == 0
    learner.train(example_loss, ROWS)
    published = learner.publish()
    assert published is not None
    version, weights = published
    kept = {name: array.copy() for name, array in weights.items()}
    learner.train(example_loss, ROWS)
    assert version == 1
    assert all(np.array_equal(weights[name], array) for name, array in kept.items())
    other = Learner(example_agent(), 0.1)
    other.load_published(published)
    assert other.version == other.published_weights[0] == 1
    assert all(np.array_equal(other.agent.weights()[name], array) for name, array in kept.items())


def test_a_local_learner_publishes_nothing() -> None:
    assert Learner(example_agent(), 0.1).publish() is None


def test_an_unavailable_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="--device nonsense cannot be used here"):
        train("a2c", env="cartpole", iterations=1, engine="inline", device="nonsense")


def test_an_unknown_place_for_the_learner_is_refused() -> None:
    with pytest.raises(ConfigError, match="place of the learner"):
        impala_training("moon", "inline")


def test_a_network_function_may_return_an_actor_and_a_critic() -> None:
    def actor_and_critic(observation_space: Any, action_space: Any) -> tuple[nn.Module, nn.Module]:
        return nn.Linear(3, 2), nn.Linear(3, 1)

    agent = example_actor_critic(OBS_SPACE, ACTION_SPACE, actor_and_critic)
    params, values = agent.evaluate({"obs": torch.ones(5, 3)})
    assert params.shape == (5, 2)
    assert values.shape == (5,)
    assert torch.equal(agent.values(torch.ones(5, 3)), values)


def test_actor_and_critic_may_have_different_encoders() -> None:
    """Two networks of the library, each with its own encoder, one of which normalises."""

    def actor_and_critic(observation_space: Any, action_space: Any) -> tuple[nn.Module, nn.Module]:
        return mlp(observation_space, action_space, (4,)), mlp(
            observation_space, spaces.Discrete(1), (4,), encoder=Encoder(observation_space, normalise=True)
        )

    agent = example_actor_critic(OBS_SPACE, ACTION_SPACE, actor_and_critic)
    agent.critic[0].normaliser.observe(5 + torch.randn(50, 3))  # type: ignore[index,union-attr]
    obs = torch.ones(5, 3)
    for tape in (None, Tape()):
        with use_tape(tape):
            torch.testing.assert_close(agent.evaluate({"obs": obs})[1].detach(), agent.values(obs).detach())


def test_a_linear_critic_is_not_a_second_head() -> None:
    agent = example_actor_critic(OBS_SPACE, ACTION_SPACE, lambda *spaces: (mlp(*spaces, (7,)), nn.Linear(3, 1)))
    assert agent.evaluate({"obs": torch.ones(5, 3)})[1].shape == agent.values(torch.ones(5, 3)).shape == (5,)


def test_more_minibatches_than_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="a batch of 4 steps cannot be split into 5 minibatches"):
        Learner(example_agent(), 0.1).train(example_loss, ROWS, num_minibatches=5)


def test_there_are_at_most_as_many_minibatches_as_sequences() -> None:
    rows = {"action": torch.arange(6), "segment": torch.tensor([4, 2]), "state": {}}
    parts = minibatches(rows, 64, torch.Generator())
    assert sorted(part["action"].tolist() for part in parts) == [[0, 1, 2, 3], [4, 5]]


def test_the_critic_must_be_a_module() -> None:
    with pytest.raises(ConfigError, match=r"not a torch\.nn\.Module"):
        example_actor_critic(OBS_SPACE, ACTION_SPACE, lambda *_: (nn.Linear(3, 2), "a value"))
