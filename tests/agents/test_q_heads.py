"""Heads of Q-networks: dueling streams and distributions by hand, in numpy, masked, and on networks of a user's own."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import EpsilonGreedy, Policy, Spaces, build_agent
from raceway.agents.distributions import MASKED_LOGIT, Categorical
from raceway.agents.export import ExportablePolicy, export_onnx
from raceway.agents.noisy_networks import NoisyLinear
from raceway.agents.numpy_inference import NumpyActor, make_numpy_actor
from raceway.agents.q_heads import Atoms, Dueling, ImplicitQuantiles, Quantiles, of_action
from raceway.algorithms import find_algorithm
from raceway.errors import ConfigError
from raceway.rl import quantile_midpoints

BOX = spaces.Box(-3, 3, (4,))
ACTIONS = spaces.Discrete(3)
MASKED = spaces.Dict({"observation": BOX, "action_mask": spaces.MultiBinary(3)})
DICT = spaces.Dict({"place": BOX, "kind": spaces.Discrete(2)})
IMAGE = spaces.Box(0, 255, (2, 40, 40), np.uint8)
NAMES = ["dueling_dqn", "c51", "qr_dqn", "iqn", "noisy_dqn", "rainbow"]
SIZES = {"num_atoms": 5, "num_quantiles": 4}


def make(name: str, obs_space: spaces.Space = BOX, **settings: Any) -> Any:
    algorithm = find_algorithm(name)
    sizes = {key: size for key, size in SIZES.items() if hasattr(algorithm.config, key)}
    cfg = algorithm.settings(hidden=(16, 8), **sizes) if not settings else algorithm.settings(**sizes, **settings)
    return build_agent(algorithm.agent, Spaces(obs_space, ACTIONS), cfg)


def observations(num: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num, 4)).astype(np.float32)


# By hand.


def test_dueling_subtracts_the_mean_of_the_advantages() -> None:
    dueling = Dueling(2, 3, None)
    with torch.no_grad():
        for stream, weight in (
            (dueling.value, [[1.0, 2.0]]),
            (dueling.advantages, [[1.0, 0.0], [0.0, 1.0], [3.0, 2.0]]),
        ):
            stream[0].weight.copy_(torch.tensor(weight))
            stream[0].bias.zero_()
    features = torch.tensor([[2.0, 1.0]])
    # V = 2 + 2 = 4; A = 2, 1, 6 + 2 = 8, whose mean is 11/3.
    assert dueling(features)[0].tolist() == pytest.approx([4 + 2 - 11 / 3, 4 + 1 - 11 / 3, 4 + 8 - 11 / 3])
    dueling(features)[0, 2].backward()
    # dQ₂/dV = 1 and dQ₂/dAᵢ = 1{i = 2} - 1/3; each times the features 2 and 1.
    assert dueling.value[0].weight.grad.tolist() == [[2.0, 1.0]]
    expected = [[-2 / 3, -1 / 3], [-2 / 3, -1 / 3], [4 / 3, 2 / 3]]
    assert dueling.advantages[0].weight.grad.flatten().tolist() == pytest.approx(np.ravel(expected).tolist())


def test_dueling_distributions_are_summed_for_each_atom_on_any_leading_dimensions() -> None:
    dueling = Dueling(2, 3, 4, num_each=5)
    features = torch.randn(7, 6, 2)  # of sequences, as a recurrent network has them
    value, advantages = dueling.value(features), dueling.advantages(features).reshape(7, 6, 3, 5)
    outputs = dueling(features).reshape(7, 6, 3, 5)
    torch.testing.assert_close(outputs, value[:, :, None] + advantages - advantages.mean(2, keepdim=True))
    torch.testing.assert_close(outputs.mean(2), value)


def test_expected_values_of_atoms_and_quantiles() -> None:
    outputs = torch.tensor([[1.0, 3.0, 0.0, 4.0, 1.0, 0.0]])
    assert Quantiles(2, 3)(outputs)[0].tolist() == pytest.approx([4 / 3, 5 / 3])
    # exp of these logits is 1, 3, 0 and 2, 2, 4; the support is -2, 0, 2.
    logits = torch.tensor([[1.0, 3.0, 1e-30, 2.0, 2.0, 4.0]]).log()
    assert Atoms(2, 3, -2, 2)(logits)[0].tolist() == pytest.approx([-0.5, 0.5])
    assert of_action(Quantiles(2, 3).by_action(outputs), torch.tensor([1])).tolist() == [[4.0, 1.0, 0.0]]


def test_implicit_quantiles() -> None:
    head = ImplicitQuantiles(2, 1, num_cosines=2, num_fractions=2)
    with torch.no_grad():
        head.embedding.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        head.embedding.bias.zero_()
        head.layer.weight.copy_(torch.tensor([[1.0, 10.0]]))
        head.layer.bias.fill_(0.5)
    # φ(τ) = ReLU(cos 0, cos πτ): (1, 0.5) at τ = 1/3, and (1, 0) at 2/3. The features are 2 and 3.
    quantiles = head.quantiles(torch.tensor([[2.0, 3.0]]), torch.tensor([[1 / 3, 2 / 3]]))
    assert quantiles[0, 0].tolist() == pytest.approx([0.5 + 2 + 10 * 3 * 0.5, 0.5 + 2])
    # The Q-value is the mean at 1/4 and 3/4.
    assert head(torch.tensor([[2.0, 3.0]])).item() == pytest.approx(2.5 + 30 * math.cos(math.pi / 4) / 2)


def test_the_mean_of_implicit_quantiles_is_the_q_value() -> None:
    head, features = ImplicitQuantiles(8, 3, 16, num_fractions=4), torch.randn(5, 8)
    fractions = quantile_midpoints(4).expand(5, 4)
    torch.testing.assert_close(head.quantiles(features, fractions).mean(-1), head(features))
    torch.testing.assert_close(head.expected(features, fractions), head(features))


# Acting.


@pytest.mark.parametrize("hidden", [(16, 8), (8,), ()])
@pytest.mark.parametrize("name", NAMES)
def test_acting_in_numpy_returns_what_torch_does(name: str, hidden: tuple[int, ...]) -> None:
    policy: Policy = make(name, hidden=hidden).actor
    obs = observations()
    actor = make_numpy_actor(policy.network, policy.distribution, None)
    assert isinstance(actor, NumpyActor)
    with torch.no_grad():
        expected = policy(torch.from_numpy(obs), {})[0].numpy()
    assert expected.shape == (6, 3)
    for _ in range(2):
        np.testing.assert_allclose(actor.last_outputs_for(obs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "network",
    [nn.Sequential(Dueling(4, 3, None)), nn.Sequential(nn.Linear(4, 6), Quantiles(3, 2), nn.ReLU())],
)
def test_a_head_elsewhere_is_left_to_torch(network: nn.Module) -> None:
    assert make_numpy_actor(network, Categorical(3), None) is None


@pytest.mark.parametrize("obs_space", [MASKED, DICT, IMAGE], ids=["mask", "dict", "image"])
@pytest.mark.parametrize("name", NAMES)
def test_masks_parts_and_images(name: str, obs_space: spaces.Space) -> None:
    agent = make(name, obs_space)
    image = {"obs": torch.randint(0, 255, (5, 2, 40, 40), dtype=torch.uint8)}["obs"]
    obs: Any = {
        "mask": {"observation": torch.from_numpy(observations(5)), "action_mask": torch.tensor([[0, 1, 1]] * 5)},
        "dict": {"place": torch.from_numpy(observations(5)), "kind": torch.tensor([0, 1, 1, 0, 1])},
        "image": image,
    }["mask" if obs_space is MASKED else "dict" if obs_space is DICT else "image"]
    q_values, _ = agent.actor(obs, {})
    assert q_values.shape == (5, 3)
    assert bool((q_values[:, 0] == MASKED_LOGIT).all()) == (obs_space is MASKED)
    arrays = {key: part.numpy() for key, part in obs.items()} if isinstance(obs, dict) else obs.numpy()
    algorithm = find_algorithm(name)
    explorer = algorithm.make_explorer(Spaces(obs_space, ACTIONS), algorithm.settings())
    if isinstance(explorer, EpsilonGreedy):
        explorer.set_knobs({"epsilon": 0.5})
    act = agent.actor.acting(np.random.default_rng(0), explorer)
    actions = np.concatenate([act(arrays, {})[0] for _ in range(50)])
    assert set(actions) <= ({1, 2} if obs_space is MASKED else {0, 1, 2})


@pytest.mark.parametrize("name", ["c51", "qr_dqn", "rainbow"])
def test_masked_next_actions_are_not_chosen(name: str) -> None:
    agent = make(name, MASKED)
    obs = {"observation": torch.from_numpy(observations()), "action_mask": torch.tensor([[0, 0, 1]] * 6)}
    assert agent.expected(agent.distributions(obs), obs).argmax(-1).tolist() == [2] * 6


def test_masked_next_actions_are_not_chosen_by_sampled_fractions() -> None:
    agent = make("iqn", MASKED)
    obs = {"observation": torch.from_numpy(observations()), "action_mask": torch.tensor([[0, 0, 1]] * 6)}
    assert agent.expected(agent.features(obs), torch.rand(6, 4), obs).argmax(-1).tolist() == [2] * 6


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_policy_takes_the_same_actions(name: str, tmp_path: Path) -> None:
    policy, obs = make(name).actor, 3 * observations(50)
    random = torch.Generator().manual_seed(4)
    for parameter in policy.parameters():  # larger than at initialisation, so that actions differ
        nn.init.normal_(parameter, std=0.5 if parameter.ndim > 1 else 0.1, generator=random)
    exported = ExportablePolicy(policy.eval(), BOX, ACTIONS, clip_actions=False)
    session = onnxruntime.InferenceSession(export_onnx(exported, tmp_path / "policy.onnx"))
    (actions,) = session.run(None, {"obs": obs})
    assert actions.tolist() == policy.acting(None)(obs, {})[0].tolist()
    assert len(set(actions.tolist())) > 1


# Networks of a user's own.


def own_network(observation_space: spaces.Space, action_space: spaces.Discrete) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, int(action_space.n)))


@pytest.mark.parametrize(
    ("name", "num"), [("c51", 15), ("qr_dqn", 12), ("dueling_dqn", 8), ("iqn", 8), ("noisy_dqn", 8), ("rainbow", 8)]
)
def test_a_network_of_ones_own_is_asked_for_as_many_outputs_as_are_needed(name: str, num: int) -> None:
    asked: list[int] = []

    def network(observation_space: spaces.Space, action_space: spaces.Discrete) -> nn.Module:
        asked.append(int(action_space.n))
        return own_network(observation_space, action_space)

    agent = make(name, network=network, hidden=(16, 8))
    assert asked == [num]
    assert agent.actor(torch.from_numpy(observations()), {})[0].shape == (6, 3)
    assert dict(agent.actor.unused_settings).keys() == ({"hidden"} if name in ("c51", "qr_dqn") else set())


class Recurrent(nn.Module):
    def initial_state(self, num: int) -> dict[str, Tensor]:
        return {"hidden": torch.zeros(num, 2)}


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_is_an_error_with_shape_and_part(name: str) -> None:
    with pytest.raises(ConfigError, match=r"part 'actor' returned \(3, 3\) for 3 observations.* needs \(3, \d+\)"):
        make(name, network=lambda *spaces: nn.Linear(4, 3), hidden=(16, 8))
    with pytest.raises(ConfigError, match="has initial_state, and this algorithm trains feed-forward networks only"):
        make(name, network=lambda *spaces: Recurrent(), hidden=(16, 8))
    with pytest.raises(ConfigError, match="mixes its rows"):
        make(name, network=lambda obs, actions: Mixing(int(actions.n)), hidden=(16, 8))


class Mixing(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, outputs)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs - obs.mean(0))


def test_the_number_of_features_of_ones_own_network_has_to_be_set() -> None:
    with pytest.raises(ConfigError, match="the last width of --hidden"):
        make("dueling_dqn", network=own_network, hidden=())


def test_which_layers_are_noisy() -> None:
    noisy = [type(layer) is NoisyLinear for layer in make("noisy_dqn").actor.network if hasattr(layer, "weight")]
    assert noisy == [False, True, True]
    streams = make("rainbow").actor.network[-2]
    assert [type(layer) for layer in [*streams.value, *streams.advantages]] == [NoisyLinear, nn.ReLU, NoisyLinear] * 2
