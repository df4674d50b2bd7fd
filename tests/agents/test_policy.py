"""Policies: acting, masks, users' networks, and weights."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import Encoder, Policy, make_policy
from raceway.errors import ConfigError
from raceway.rl import Batch, empty

BOX = spaces.Box(-3, 3, (4,))
DISCRETE = spaces.Discrete(3)
CONTINUOUS = spaces.Box(-1, 1, (2,))

NETWORKS = pytest.mark.parametrize(
    ("action_space", "network"), [(DISCRETE, "mlp"), (CONTINUOUS, "mlp"), (DISCRETE, "lstm"), (CONTINUOUS, "lstm")]
)


def observations(num: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num, 4)).astype(np.float32)


def act(policy: Policy, obs: Any, seed: int | None = 0) -> np.ndarray:
    random = None if seed is None else np.random.default_rng(seed)
    return policy.act(obs, policy.initial_state(5), random)[0]


def example_batch(num: int = 5) -> Batch:
    return {"obs": observations(num), "action": np.arange(num) % 3, "length": np.array([num - 2, 2])}


def linear(outputs: int) -> Callable[..., nn.Module]:
    return lambda observation_space, action_space: nn.Sequential(Encoder(observation_space), nn.Linear(4, outputs))


# Acting.


@NETWORKS
def test_actions_come_from_the_distribution_of_the_network_outputs(action_space: spaces.Space, network: str) -> None:
    policy = make_policy(BOX, action_space, network, (8,), seed=0)
    obs = observations()
    with torch.no_grad():
        params, _ = policy(torch.from_numpy(obs), policy.initial_state(5))
    expected = policy.distribution.sample(params.numpy(), np.random.default_rng(0))
    np.testing.assert_allclose(act(policy, obs), expected, rtol=1e-5, atol=1e-5)
    best = policy.distribution.mode(params.numpy())
    np.testing.assert_allclose(act(policy, obs, seed=None), best, rtol=1e-5, atol=1e-5)


@NETWORKS
def test_acting_changes_nothing(action_space: spaces.Space, network: str) -> None:
    policy = make_policy(BOX, action_space, network, (8,), seed=0)
    obs, state, before = observations(), policy.initial_state(5), policy.sha256()
    policy.act(obs, state, np.random.default_rng(0))
    np.testing.assert_array_equal(obs, observations())
    assert not any(part.any() for part in state.values())
    assert policy.sha256() == before


def test_acting_uses_the_latest_weights() -> None:
    policy = make_policy(BOX, CONTINUOUS, hidden=(8,), seed=0)
    optimiser = torch.optim.Adam(policy.parameters(), 0.1)
    batch = {"obs": observations(), "action": np.ones((5, 2), np.float32)}
    for _ in range(3):
        before = act(policy, batch["obs"])
        optimiser.zero_grad()
        (-policy.log_prob(batch)).sum().backward()
        optimiser.step()
        actual = act(policy, batch["obs"])
        assert (actual != before).all()
        with torch.no_grad():
            params = policy.params(batch).numpy()
        expected = policy.distribution.sample(params, np.random.default_rng(0))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: cloudpickle.loads(cloudpickle.dumps(policy))])
def test_a_copy_acts_with_its_own_weights(copied: Callable[[Policy], Policy]) -> None:
    policy = make_policy(BOX, CONTINUOUS, hidden=(8,), seed=0)
    other = copied(policy)
    before = act(policy, observations())
    np.testing.assert_array_equal(act(other, observations()), before)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 1
    np.testing.assert_array_equal(act(other, observations()), before)
    changed = act(policy, observations())
    assert (changed != before).all()
    other.load(policy.weights())
    np.testing.assert_array_equal(act(other, observations()), changed)


def test_a_policy_can_be_pickled() -> None:
    policy = make_policy(BOX, DISCRETE, "lstm", (8,), seed=0)
    other = pickle.loads(pickle.dumps(policy))
    assert other.sha256() == policy.sha256()


# Masks.

MASKED = spaces.Dict({"observation": BOX, "action_mask": spaces.MultiBinary(3)})


def masked_obs(num: int, allowed: list[int]) -> Any:
    return {"observation": observations(num), "action_mask": np.tile(np.array(allowed, np.int8), (num, 1))}


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_masked_actions_are_not_taken(network: str) -> None:
    policy = make_policy(MASKED, DISCRETE, network, (8,), seed=0)
    for allowed in ([1, 0, 0], [0, 1, 1], [1, 0, 1]):
        obs = masked_obs(500, allowed)
        actions, _ = policy.act(obs, policy.initial_state(500), np.random.default_rng(0))
        assert set(actions.tolist()) == set(np.flatnonzero(allowed).tolist())
        batch = {"obs": obs, "action": actions, "length": np.array([500])}
        log_probs = policy.log_prob(batch)
        assert (log_probs > -20).all()
        policy.zero_grad()
        log_probs.sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in policy.parameters() if parameter.grad is not None)


@pytest.mark.parametrize(
    "space",
    [
        MASKED,
        spaces.Dict({"observation": spaces.Dict({"x": BOX}), "action_mask": spaces.MultiBinary(3)}),
        spaces.Dict({"observation": spaces.Tuple([BOX, DISCRETE]), "action_mask": spaces.MultiBinary(3)}),
        spaces.Dict({"board": BOX, "action_mask": spaces.MultiBinary(3)}),
        spaces.Dict({"observation": BOX, "hand": DISCRETE, "action_mask": spaces.MultiBinary(3)}),
    ],
)
def test_a_mask_beside_every_kind_of_observation(space: spaces.Dict) -> None:
    policy = make_policy(space, DISCRETE, hidden=(8,), seed=0)
    obs = empty(space, (6,))
    obs["action_mask"][:, 1] = 1
    assert policy.act(obs, {}, np.random.default_rng(0))[0].tolist() == [1] * 6


# Users' networks.


@pytest.mark.parametrize(
    ("action_space", "outputs"), [(DISCRETE, 3), (spaces.MultiDiscrete([2, 3]), 5), (CONTINUOUS, 4)]
)
def test_a_users_network_with_the_right_number_of_outputs(action_space: spaces.Space, outputs: int) -> None:
    policy = make_policy(BOX, action_space, linear(outputs), seed=0)
    assert policy.log_std is None
    assert policy.params({"obs": observations()}).shape == (5, outputs)


def test_a_users_network_may_return_means_only() -> None:
    """The policy then adds the deviations, and trains them."""
    policy = make_policy(BOX, CONTINUOUS, linear(2), seed=0)
    batch = {"obs": observations(), "action": np.ones((5, 2), np.float32)}
    params = policy.params(batch)
    assert params.shape == (5, 4)
    assert not params[:, 2:].any()
    policy.log_prob(batch).sum().backward()
    assert policy.log_std is not None
    assert policy.log_std.grad is not None
    assert policy.log_std.grad.all()
    assert "log_std" in policy.weights()
    with torch.no_grad():
        policy.log_std.fill_(-50)
    np.testing.assert_allclose(act(policy, batch["obs"]), params[:, :2].detach(), rtol=1e-6)


@pytest.mark.parametrize(
    ("action_space", "outputs", "expected"), [(DISCRETE, 4, 3), (CONTINUOUS, 3, 4), (CONTINUOUS, 1, 4)]
)
def test_a_wrong_number_of_outputs(action_space: spaces.Space, outputs: int, expected: int) -> None:
    message = rf"part 'actor' returned \(3, {outputs}\) for 3 observations; actions of .* need \(3, {expected}\)"
    with pytest.raises(ConfigError, match=message):
        make_policy(BOX, action_space, linear(outputs))


class InvalidNetwork(nn.Module):
    """A network with an invalid output."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, obs: Tensor) -> Any:
        return self.function(obs)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda obs: (obs[:, :3],), r"returned a tuple for 3 observations"),
        (lambda obs: None, r"returned a NoneType for 3 observations"),
        (lambda obs: obs[0, :3], r"returned \(3,\) for 3 observations; actions of Discrete\(3\) need \(3, 3\)"),
        (lambda obs: obs[:, None, :3], r"returned \(3, 1, 3\) for 3 observations"),
        (lambda obs: obs @ torch.ones(7), r"part 'actor' failed on 3 rows of shape \(3, 4\): .*"),
    ],
)
def test_a_network_that_cannot_be_used(function: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_policy(BOX, DISCRETE, lambda *_: InvalidNetwork(function))


def test_means_without_a_row_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"returned \(2,\) for 3 observations; actions of .* need \(3, 4\)"):
        make_policy(BOX, CONTINUOUS, lambda *_: InvalidNetwork(lambda obs: obs[0, :2]))


def test_a_function_that_returns_no_network() -> None:
    with pytest.raises(ConfigError, match=r"returned 'mlp', which is not a torch\.nn\.Module"):
        make_policy(BOX, DISCRETE, lambda *_: "mlp")


def test_a_function_gets_the_space_that_the_network_sees() -> None:
    received = []

    def network(observation_space: spaces.Space, action_space: spaces.Space) -> nn.Module:
        received.append((observation_space, action_space))
        return nn.Sequential(Encoder(observation_space), nn.Linear(4, 3))

    make_policy(MASKED, DISCRETE, network)
    assert received == [(BOX, DISCRETE)]


class Sums(nn.Module):
    """Has the sum of the observations as its state."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def initial_state(self, num: int) -> dict[str, Tensor]:
        return {"sum": torch.zeros(num, 4)}

    def forward(self, obs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        total = state["sum"] + obs * self.scale
        return total[:, :3], {"sum": total}


def test_a_users_recurrent_network() -> None:
    policy = make_policy(BOX, DISCRETE, Sums)
    assert policy.recurrent
    obs = observations(6)
    batch = {"obs": obs, "length": np.array([1, 3, 2])}
    sums = np.concatenate([obs[:1], np.cumsum(obs[1:4], 0), np.cumsum(obs[4:], 0)])
    np.testing.assert_allclose(policy.params(batch).detach(), sums[:, :3], rtol=1e-5, atol=1e-6)
    state = policy.initial_state(6)
    for _ in range(2):
        _, state = policy.act(obs, state, np.random.default_rng(0))
    np.testing.assert_allclose(state["sum"], 2 * obs, rtol=1e-6)


def test_a_recurrent_network_that_returns_no_state() -> None:
    class Forgetful(Sums):
        def forward(self, obs: Tensor, state: dict[str, Tensor]) -> Any:
            return super().forward(obs, state)[0]

    with pytest.raises(ConfigError, match="part 'actor' failed on 3 rows"):
        make_policy(BOX, DISCRETE, Forgetful)


# Weights.


def test_a_seed_gives_the_same_weights_and_torchs_generator_is_not_changed() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (make_policy(BOX, DISCRETE, "lstm", (8,), seed=seed) for seed in (5, 5, 6))
    unseeded = make_policy(BOX, DISCRETE, "lstm", (8,))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.sha256() == again.sha256()
    assert len({first.sha256(), other.sha256(), unseeded.sha256()}) == 3


def test_the_hash_changes_with_every_weight() -> None:
    policy = make_policy(BOX, CONTINUOUS, hidden=(3,), seed=0)
    hashes = {policy.sha256()}
    count = 1
    for array in policy.weights().values():
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = np.nextafter(kept, np.float32(np.inf))
            hashes.add(policy.sha256())
            array[index] = kept
            count += 1
    assert len(hashes) == count
    assert policy.sha256() in hashes
    assert count == 1 + 4 * 3 + 3 + 3 * 2 + 2 + 2


def test_the_hash_depends_on_shapes() -> None:
    def reshaped(shape: tuple[int, int]) -> str:
        class Weights(nn.Module):
            def __init__(self, *_: Any) -> None:
                super().__init__()
                self.table = nn.Parameter(torch.zeros(shape))

            def forward(self, obs: Tensor) -> Tensor:
                return obs[:, :3]

        return make_policy(BOX, DISCRETE, Weights).sha256()

    assert reshaped((2, 6)) != reshaped((6, 2))


@NETWORKS
def test_weights_can_be_loaded(action_space: spaces.Space, network: str) -> None:
    policy, other = (make_policy(BOX, action_space, network, (8,), seed=seed) for seed in (1, 2))
    weights = {name: array.copy() for name, array in policy.weights().items()}
    assert weights.keys() == policy.state_dict().keys()
    assert policy.sha256() != other.sha256()
    other.load(weights)
    assert policy.sha256() == other.sha256()
    np.testing.assert_array_equal(act(policy, observations()), act(other, observations()))
    for array in weights.values():
        array += 1  # they were copied
    assert policy.sha256() == other.sha256()


def test_weights_share_the_networks_memory() -> None:
    policy = make_policy(BOX, DISCRETE, hidden=(8,), seed=0)
    weights = policy.weights()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(7)
    assert all((array == 7).all() for array in weights.values())


@pytest.fixture
def every_warning() -> Iterator[None]:
    """Make torch repeat its warnings, most of which it gives only once."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning")
def test_read_only_weights_are_loaded_without_a_warning() -> None:
    """As they arrive from another process."""
    policy, other = (make_policy(BOX, DISCRETE, hidden=(8,), seed=seed) for seed in (1, 2))
    weights = policy.weights()
    for array in weights.values():
        array.flags.writeable = False
    other.load(weights)
    assert policy.sha256() == other.sha256()


@pytest.mark.usefixtures("every_warning")
@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_read_only_batches_are_trained_on_without_a_warning(network: str) -> None:
    policy = make_policy(BOX, DISCRETE, network, (8,), seed=0)
    batch = example_batch()
    expected = policy.log_prob(example_batch()).detach()
    for array in batch.values():
        array.flags.writeable = False
    torch.testing.assert_close(policy.log_prob(batch).detach(), expected)


def test_buffers_are_part_of_the_weights() -> None:
    def network(*_: Any) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()

    policy, other = (make_policy(BOX, DISCRETE, network, seed=seed) for seed in (1, 2))
    policy.network.train()(torch.from_numpy(observations()))
    policy.network.eval()
    other.load(policy.weights())
    assert other.weights()["network.0.num_batches_tracked"] == 1
    np.testing.assert_array_equal(act(policy, observations()), act(other, observations()))


# Every space.


@pytest.mark.parametrize("network", ["mlp", "lstm"])
@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(-1, 1, ()),
        spaces.Box(-1, 1, (2, 2), np.float64),
        spaces.Discrete(5, start=3),
        spaces.Discrete(2, start=-9),
        spaces.MultiDiscrete([2, 3], start=[4, -5]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(0, 255, (36, 36, 3), np.uint8),
        spaces.Dict({"a": BOX, "items": spaces.Tuple([DISCRETE, spaces.Discrete(3, start=1)])}),
    ],
)
def test_acting_and_training_on_every_space(network: str, space: spaces.Space) -> None:
    policy = make_policy(space, DISCRETE, network, (8,), seed=0)
    obs = empty(space, (5,))
    actions, _ = policy.act(obs, policy.initial_state(5), np.random.default_rng(0))
    log_probs = policy.log_prob({"obs": obs, "action": actions, "length": np.array([2, 3])})
    assert log_probs.shape == (5,)
    assert log_probs.isfinite().all()
    log_probs.sum().backward()
