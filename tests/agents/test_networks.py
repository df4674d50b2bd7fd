"""Networks for every space: the encoding of observations, the layers, and inference in numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import Categorical, Distribution, Encoder, Gaussian, RecurrentNetwork, mlp, network_for
from raceway.agents.networks import ActionHead
from raceway.agents.numpy_inference import NumpyActor, make_numpy_actor
from raceway.autograd.layers import Layers
from raceway.errors import ConfigError
from raceway.rl import empty, fill, tree_map

DISCRETE = spaces.Discrete(3)
CHANNELS_FIRST = spaces.Box(0, 255, (2, 40, 36), np.uint8)
CHANNELS_LAST = spaces.Box(0, 255, (40, 36, 2), np.uint8)


def tensors(tree: Any) -> Any:
    return tree_map(lambda part: torch.as_tensor(np.asarray(part)), tree)


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (spaces.Box(-9, 9, (3,)), np.array([[1, 2, 3], [4, 5, 6]], np.float32), [[1, 2, 3], [4, 5, 6]]),
        (spaces.Box(-9, 9, (2, 2)), np.array([[[1, 2], [3, 4]]], np.float32), [[1, 2, 3, 4]]),
        (spaces.Box(-9, 9, (1, 2, 2)), np.array([[[[1, 2], [3, 4]]]], np.float32), [[1, 2, 3, 4]]),
        (spaces.Box(-9, 9, ()), np.array([7, 8], np.float32), [[7], [8]]),
        (spaces.Box(-9, 9, (2,), np.int32), np.array([[-1, 2]], np.int32), [[-1, 2]]),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([[200, 3]], np.uint8), [[200, 3]]),
        (spaces.Discrete(4), np.array([0, 3]), [[1, 0, 0, 0], [0, 0, 0, 1]]),
        (spaces.Discrete(3, start=5), np.array([5, 7]), [[1, 0, 0], [0, 0, 1]]),
        (spaces.Discrete(3, start=-1), np.array([-1, 0]), [[1, 0, 0], [0, 1, 0]]),
        (spaces.MultiDiscrete([2, 3], start=[0, 4]), np.array([[1, 4], [0, 6]]), [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
        (spaces.MultiDiscrete([[2], [3]]), np.array([[[1], [2]]]), [[0, 1, 0, 0, 1]]),
        (spaces.MultiBinary(3), np.array([[1, 0, 1]], np.int8), [[1, 0, 1]]),
        (spaces.MultiBinary((2, 2)), np.array([[[1, 0], [0, 1]]], np.int8), [[1, 0, 0, 1]]),
    ],
)
def test_encoded_observations(space: spaces.Space, obs: np.ndarray, expected: Any) -> None:
    encoder = Encoder(space)
    actual = encoder(tensors(obs))
    assert actual.dtype == torch.float32
    assert encoder.size == len(expected[0])
    np.testing.assert_array_equal(actual, expected)
    stacked = encoder(tensors(np.stack([obs, obs])))
    np.testing.assert_array_equal(stacked, [expected, expected])


def test_encoded_parts_are_concatenated() -> None:
    inner = spaces.Tuple([spaces.Box(-9, 9, (2,)), spaces.Discrete(2)])
    space = spaces.Dict({"b": spaces.Discrete(3, start=1), "a": inner})
    encoder = Encoder(space)
    obs = {"b": np.array([2]), "a": {"0": np.array([[5, 6]], np.float32), "1": np.array([1])}}
    assert encoder.size == 7
    names = list(space.spaces)
    parts = {"a": [5, 6, 0, 1], "b": [0, 1, 0]}
    np.testing.assert_array_equal(encoder(tensors(obs)), [[number for name in names for number in parts[name]]])


@pytest.mark.parametrize("key", ["items", "keys", "type", "training", "a.b", "forward", "", "0"])
def test_parts_may_have_any_name(key: str) -> None:
    """Also one that a module uses itself."""
    space = spaces.Dict({key: spaces.Discrete(2), "other": spaces.Box(-9, 9, (1,))})
    actual = Encoder(space)(tensors({key: np.array([1]), "other": np.array([[5]], np.float32)}))
    assert sorted(actual[0].tolist()) == [0, 1, 5]


def test_images_with_channels_first_or_last_are_encoded_alike() -> None:
    first, last = Encoder(CHANNELS_FIRST), Encoder(CHANNELS_LAST)
    last.load_state_dict(first.state_dict())
    images = torch.randint(0, 256, (3, 2, 40, 36), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    actual = first(images)
    assert actual.shape == (3, first.size)
    assert first.size == last.size == 64 * 1 * 1
    torch.testing.assert_close(last(images.permute(0, 2, 3, 1).contiguous()), actual)
    torch.testing.assert_close(first(images[:, None]), actual[:, None])
    assert actual.any()


def test_images_are_scaled_to_one() -> None:
    encoder = Encoder(CHANNELS_FIRST)
    white = torch.full((1, 2, 40, 36), 255, dtype=torch.uint8)
    torch.testing.assert_close(encoder(white), encoder.images.layers(torch.ones(1, 2, 40, 36)).flatten(1))


@pytest.mark.parametrize("shape", [(84, 84, 4), (4, 84, 84), (210, 160, 3), (1, 36, 36)])
def test_common_image_sizes(shape: tuple[int, ...]) -> None:
    encoder = Encoder(spaces.Box(0, 255, shape, np.uint8))
    assert encoder(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, encoder.size)


@pytest.mark.parametrize("shape", [(35, 84, 3), (3, 84, 35)])
def test_images_that_are_too_small_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"too small for the convolutions, which need at least 36 x 36"):
        Encoder(spaces.Box(0, 255, shape, np.uint8))


def test_the_layers_of_an_mlp() -> None:
    network = mlp(spaces.Box(-1, 1, (5,)), DISCRETE, (7, 6), nn.Tanh)
    assert [type(layer) for layer in network] == [Encoder, nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, ActionHead]
    assert network(torch.zeros(2, 5)).shape == (2, 3)
    assert [type(layer) for layer in mlp(spaces.Box(-1, 1, (5,)), DISCRETE, ())] == [Encoder, ActionHead]


def test_a_head_for_continuous_actions_has_deviations() -> None:
    head = ActionHead(4, spaces.Box(-1, 1, (2,)), log_std=-0.5)
    actual = head(torch.zeros(3, 4))
    assert actual.shape == (3, 4)
    torch.testing.assert_close(actual[:, :2], head.bias.expand(3, 2))
    torch.testing.assert_close(actual[:, 2:], torch.full((3, 2), -0.5))
    actual.sum().backward()
    assert head.log_std is not None
    assert head.log_std.grad is not None
    assert head.log_std.grad.tolist() == [3, 3]


def test_an_lstm_depends_on_its_state() -> None:
    network = RecurrentNetwork(spaces.Box(-1, 1, (2,)), DISCRETE, (9, 5))
    state = network.initial_state(4)
    assert {name: part.shape for name, part in state.items()} == {"hidden": (4, 5), "cell": (4, 5)}
    first, after = network(torch.ones(4, 2), state)
    second, _ = network(torch.ones(4, 2), after)
    assert first.shape == (4, 3)
    assert (first != second).all()
    assert RecurrentNetwork(spaces.Box(-1, 1, (2,)), DISCRETE).cell.hidden_size == 128


def test_an_unknown_network() -> None:
    with pytest.raises(ConfigError, match=r"unknown network 'lstn'\. Did you mean 'lstm'\?"):
        network_for(spaces.Box(-1, 1, (2,)), DISCRETE, "lstn", ())


@pytest.mark.parametrize("result", [None, 3, nn.Linear, lambda obs: obs])
def test_a_function_that_returns_no_network(result: Any) -> None:
    def returns_it(observation_space: Any, action_space: Any) -> Any:
        return result

    with pytest.raises(ConfigError, match=r"the network function returns_it returned .*, which is not a torch\.nn\."):
        network_for(spaces.Box(-1, 1, (2,)), DISCRETE, returns_it, ())


# Inference in numpy.


BOX = spaces.Box(-3, 3, (4,))


def numpy_actor(network: nn.Module, distribution: Distribution | None = None) -> NumpyActor:
    actor = make_numpy_actor(network, distribution or Categorical(3), None)
    assert actor is not None
    return actor


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-3, 3, (4,)),
        spaces.Box(-3, 3, (2, 3)),
        spaces.Box(-3, 3, ()),
        spaces.Box(-9, 9, (3,), np.int32),
        spaces.MultiBinary(5),
    ],
)
@pytest.mark.parametrize("hidden", [(), (8,), (16, 8)])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_numpy_outputs_equal_those_of_torch(
    activation: type[nn.Module], space: spaces.Space, hidden: tuple[int, ...], layer_norm: bool
) -> None:
    torch.manual_seed(0)
    network = mlp(space, DISCRETE, hidden, activation, layer_norm=layer_norm)
    with_other_norms(network)
    actor = numpy_actor(network)
    space.seed(0)
    obs = empty(space, (6,))
    for row in range(6):
        fill(obs, row, space.sample())
    before = obs.copy()
    actual = actor.outputs(obs)
    np.testing.assert_allclose(actual, network(torch.from_numpy(obs)).detach(), rtol=1e-5, atol=1e-5)
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(obs, before)


def with_other_norms(network: nn.Module) -> None:
    """Give the norms of a network other weights than those that change nothing."""
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.LayerNorm):
                layer.weight.uniform_(0.5, 2)
                layer.bias.uniform_(-1, 1)


def test_layers_are_normalised_before_the_activation_by_hand() -> None:
    network = mlp(spaces.Box(-9, 9, (1,)), spaces.Discrete(2), (2,), layer_norm=True)
    assert [type(layer).__name__ for layer in network[1:]] == ["Linear", "LayerNorm", "ReLU", "ActionHead"]
    with torch.no_grad():
        network[1].weight.copy_(torch.tensor([[3.0], [1.0]]))
        network[1].bias.copy_(torch.tensor([0.0, 2.0]))
        network[2].weight.copy_(torch.tensor([2.0, 4.0]))
        network[2].bias.copy_(torch.tensor([1.0, 7.0]))
        network[4].weight.copy_(torch.tensor([[1.0, 10.0], [0.0, 1.0]]))
        network[4].bias.zero_()
    # For 4 the layer is (12, 6), of mean 9 and deviation 3, so (1, -1), then (2 + 1, -4 + 7) = (3, 3).
    # For -3 it is (-9, -1), of mean -5 and deviation 4, so (-1, 1), then (-2 + 1, 4 + 7) = (-1, 11); with ReLU (0, 11).
    obs = np.array([[4.0], [-3.0]], np.float32)
    expected = [[33.0, 3.0], [110.0, 11.0]]
    np.testing.assert_allclose(network(torch.from_numpy(obs)).detach(), expected, rtol=1e-5)
    np.testing.assert_allclose(numpy_actor(network, Categorical(2)).outputs(obs), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8)],  # after the activation
        [nn.Linear(4, 8), nn.LayerNorm(8), nn.LayerNorm(8)],
        [nn.Linear(4, 8), nn.LayerNorm(8, elementwise_affine=False)],
        [nn.LayerNorm(4), nn.Linear(4, 8)],
    ],
)
def test_norms_in_other_places_are_left_to_torch(layers: list[nn.Module]) -> None:
    network = Layers(Encoder(BOX), *layers, nn.Linear(8, 3))
    assert make_numpy_actor(network, Categorical(3), None) is None
    with torch.no_grad():
        x = torch.randn(5, 4)
        torch.testing.assert_close(network(x), nn.Sequential(*layers, network[-1])(x))


def test_numpy_outputs_have_no_deviations() -> None:
    network = mlp(spaces.Box(-3, 3, (4,)), spaces.Box(-1, 1, (2,)), (8,))
    obs = torch.ones(3, 4)
    actual = numpy_actor(network, Gaussian((2,))).outputs(obs.numpy())
    np.testing.assert_allclose(actual, network(obs)[:, :2].detach(), rtol=1e-5, atol=1e-6)


def test_an_actor_keeps_the_weights_it_was_made_with() -> None:
    network = mlp(spaces.Box(-3, 3, (4,)), DISCRETE, (8,))
    actor, obs = numpy_actor(network), torch.ones(2, 4)
    before = actor.outputs(obs.numpy())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 1
    np.testing.assert_array_equal(actor.outputs(obs.numpy()), before)
    assert (numpy_actor(network).outputs(obs.numpy()) != before).any()


@pytest.mark.parametrize("rows", [1, 7, 3000])  # more than the noise that is sampled at once
def test_an_actor_samples_from_the_distribution(rows: int) -> None:
    random = np.random.default_rng(0)
    discrete = mlp(BOX, DISCRETE, (8,))
    obs = np.ones((rows, 4), np.float32)
    actor = make_numpy_actor(discrete, Categorical(3), random)
    assert actor is not None
    sampled = np.concatenate([actor(obs, {})[0] for _ in range(9000 // rows + 1)])
    expected = discrete(torch.ones(1, 4)).softmax(-1).detach().numpy()[0]
    np.testing.assert_allclose(np.bincount(sampled, minlength=3) / len(sampled), expected, atol=0.025)

    gaussian = mlp(BOX, spaces.Box(-1, 1, (2,)), (8,))
    with torch.no_grad():
        gaussian[-1].log_std.copy_(torch.tensor([0.0, -1.0]))
    actor = make_numpy_actor(gaussian, Gaussian((2,)), random)
    assert actor is not None
    values = np.concatenate([actor(obs, {})[0] for _ in range(9000 // rows + 1)])
    np.testing.assert_allclose(values.mean(0), gaussian(torch.ones(1, 4))[0, :2].detach(), atol=0.05)
    np.testing.assert_allclose(values.std(0), [1.0, np.exp(-1.0)], atol=0.03)


def test_without_a_generator_an_actor_takes_the_most_likely_action() -> None:
    network = mlp(BOX, DISCRETE, (8,))
    obs = torch.randn(20, 4)
    assert numpy_actor(network)(obs.numpy(), {})[0].tolist() == network(obs).argmax(-1).tolist()


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Shifted(Encoder):
    def forward(self, obs: Any) -> Tensor:
        return super().forward(obs) + 1


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(),
        nn.Sequential(Encoder(BOX)),
        nn.Sequential(nn.Linear(4, 3)),
        nn.Sequential(Encoder(BOX), nn.Linear(4, 3), nn.Softplus()),
        nn.Sequential(Encoder(BOX), Doubled(4, 3)),
        nn.Sequential(Shifted(BOX), nn.Linear(4, 3)),
        nn.Sequential(Encoder(BOX), nn.Dropout(), nn.Linear(4, 3)),
        nn.Sequential(Encoder(spaces.Discrete(4)), nn.Linear(4, 3)),
        nn.Sequential(Encoder(BOX), ActionHead(4, BOX), nn.Tanh()),  # its deviations go through the activation too
        nn.Sequential(Encoder(BOX), nn.Tanh(), nn.Linear(4, 3)),  # it would overwrite the observations
        nn.Linear(4, 3),
    ],
)
def test_other_networks_are_left_to_torch(network: nn.Module) -> None:
    assert make_numpy_actor(network, Categorical(3), None) is None


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_last_layer_is_supported_for_discrete_actions(bias: bool) -> None:
    network = nn.Sequential(Encoder(BOX), nn.Linear(4, 8, bias=bias), nn.ReLU(), nn.Linear(8, 3, bias=bias))
    obs = torch.ones(2, 4)
    np.testing.assert_allclose(numpy_actor(network).outputs(obs.numpy()), network(obs).detach(), rtol=1e-5, atol=1e-6)
    assert make_numpy_actor(nn.Sequential(Encoder(BOX), nn.Linear(4, 6)), Gaussian((3,)), None) is None
