"""The learner: on the driver, on a thread, in an actor, on a device."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import Policy, make_policy
from raceway.agents.networks import Encoder, mlp
from raceway.algorithms import find_algorithm
from raceway.autograd.tape import Tape, taping
from raceway.errors import ConfigError
from raceway.learner.learner import Learner
from raceway.rl import Batch
from raceway.training.train import Training, train

SEEN, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
ROWS = {"obs": np.ones((4, 3), np.float32), "action": np.zeros(4, np.int64)}
SETTINGS = {
    "env": "cartpole", "num_envs": 4, "num_shards": 2, "fragment_steps": 4, "hidden": (8,), "activation": None,
    "shared_layers": False, "scale_rewards": False, "num_async": 1, "lr": 0.01, "total_timesteps": None,
}  # fmt: skip


def a_policy() -> Policy:
    return make_policy(SEEN, CHOICE, "mlp", (4,), seed=0, kind="actor-critic")


def a_loss(policy: Policy, batch: Batch) -> Tensor:
    params, values = policy.evaluate(batch["obs"])
    return params.square().mean() + (values - 1).square().mean()


def an_impala(on: str, engine: str, **more: Any) -> Training:
    algorithm = find_algorithm("impala")
    workers = {"num_workers": 2} if engine == "process" else {}
    return Training(algorithm, algorithm.settings(**SETTINGS, **workers, engine=engine, learner_on=on, **more))


@pytest.mark.parametrize("engine", ["inline", "process"])
@pytest.mark.parametrize("on", ["driver", "thread", "actor"])
def test_it_learns_wherever_it_lives(on: str, engine: str) -> None:
    training = an_impala(on, engine, iterations=30)
    before = training.policy.sha256()
    with training.planned(run=True) as flow:
        lags = [row["train/policy_lag"] for row in flow.take(30)]
    assert training.policy.sha256() != before
    assert training.learner.version >= 30
    if engine == "inline":  # two shards, each one fragment ahead; elsewhere two batches more wait for it
        assert max(lags) <= (2 if on == "driver" else 6)
    assert all(bool(torch.isfinite(one).all()) for one in training.policy.parameters())


def test_what_was_trained_in_an_actor_is_the_result() -> None:
    result = train("impala", **SETTINGS, engine="inline", learner_on="actor", iterations=5)
    untrained = an_impala("driver", "inline").policy
    assert result.summary["weights_sha256"] == result.policy.sha256() != untrained.sha256()


def test_one_that_is_sent_away_trains_on_as_it_would_have_here() -> None:
    here = Learner(a_policy(), 0.1, max_grad_norm=1.0)
    here.train(a_loss, ROWS)
    there = pickle.loads(pickle.dumps(here))
    for learner in (here, there):
        learner.train(a_loss, ROWS)
    assert there.version == 2
    assert there.policy.sha256() == here.policy.sha256()


def test_weights_that_were_published_stay_as_they_are() -> None:
    learner = Learner(a_policy(), 0.1, away=True)
    assert learner.published[0] == 0
    learner.train(a_loss, ROWS)
    news = learner.news()
    assert news is not None
    version, weights = news
    kept = {name: array.copy() for name, array in weights.items()}
    learner.train(a_loss, ROWS)
    assert version == 1
    assert all(np.array_equal(weights[name], array) for name, array in kept.items())
    other = Learner(a_policy(), 0.1)
    other.follow(news)
    assert other.version == other.published[0] == 1
    assert all(np.array_equal(other.policy.weights()[name], array) for name, array in kept.items())


def test_one_that_is_here_has_no_news() -> None:
    assert Learner(a_policy(), 0.1).news() is None


def test_a_device_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="--device nonsense cannot be used here"):
        train("a2c", env="cartpole", iterations=1, engine="inline", device="nonsense")


def test_a_place_that_there_is_not_is_told() -> None:
    with pytest.raises(ConfigError, match="place of the learner"):
        an_impala("moon", "inline")


def test_a_function_may_return_what_acts_and_what_values() -> None:
    def two(observation_space: Any, action_space: Any) -> tuple[nn.Module, nn.Module]:
        return nn.Linear(3, 2), nn.Linear(3, 1)

    policy = make_policy(SEEN, CHOICE, two, kind="actor-critic")
    params, values = policy.evaluate(torch.ones(5, 3))
    assert params.shape == (5, 2)
    assert values.shape == (5,)
    assert torch.equal(policy.values(torch.ones(5, 3)), values)


def test_what_acts_and_what_values_may_see_differently() -> None:
    """Two networks of the library's own kind, each with an encoder of its own, of which one normalises."""

    def two(observation_space: Any, action_space: Any) -> tuple[nn.Module, nn.Module]:
        return mlp(observation_space, action_space, (4,)), mlp(
            observation_space, spaces.Discrete(1), (4,), encoder=Encoder(observation_space, normalise=True)
        )

    policy = make_policy(SEEN, CHOICE, two, seed=0, kind="actor-critic")
    policy.critic[0].normaliser.observe(5 + torch.randn(50, 3))  # type: ignore[index,union-attr]
    obs = torch.ones(5, 3)
    for tape in (None, Tape()):
        with taping(tape):
            torch.testing.assert_close(policy.evaluate(obs)[1].detach(), policy.values(obs).detach())


def test_a_linear_layer_that_values_is_no_second_head() -> None:
    policy = make_policy(SEEN, CHOICE, lambda seen, does: (mlp(seen, does, (7,)), nn.Linear(3, 1)), kind="actor-critic")
    assert policy.evaluate(torch.ones(5, 3))[1].shape == policy.values(torch.ones(5, 3)).shape == (5,)


def test_more_minibatches_than_steps_are_told() -> None:
    with pytest.raises(ConfigError, match="5 minibatches cannot be made of a batch of 4 steps"):
        Learner(a_policy(), 0.1).train(a_loss, ROWS, num_minibatches=5)


def test_what_values_must_be_a_network_too() -> None:
    with pytest.raises(ConfigError, match=r"no torch\.nn\.Module"):
        make_policy(SEEN, CHOICE, lambda *_: (nn.Linear(3, 2), "a value"), kind="actor-critic")
