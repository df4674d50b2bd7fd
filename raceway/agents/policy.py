"""A policy: a network, the distribution of its actions, and `(obs, state) -> (action, state)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.distributions import BoundedGaussian, Distribution, Gaussian, SquashedGaussian, distribution_for
from raceway.agents.exploration import Explorer, Sample
from raceway.agents.feature_actor import make_feature_actor
from raceway.agents.network_checks import NUM_ROWS, example_rows, try_network
from raceway.agents.network_choice import network_for
from raceway.agents.networks import Encoder, State
from raceway.agents.numpy_inference import make_numpy_actor
from raceway.agents.recurrent import RecurrentNetwork, run_segments
from raceway.agents.weights import WeightsModule
from raceway.autograd.layers import Layers
from raceway.errors import ConfigError
from raceway.rl import Batch, has_segments, network_obs_space, num_rows, tree_map
from raceway.rl.seeding import seeded_globally

Array = np.ndarray
ActingFunction = Callable[[Any, State], tuple[Array, State]]
"""Takes observations and the recurrent state, and returns actions and the next state."""


class Policy(WeightsModule):
    """A network that acts, and the distribution of its actions: the acting part of an agent.

    Args:
        observation_space: the observation space, with the action mask if there is one.
        action_space: the action space.
        network: from observations to the parameters of the distribution.
        distribution: the distribution of actions; by default the usual one for the action space.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        network: nn.Module,
        distribution: Distribution | None = None,
    ) -> None:
        super().__init__()
        self.network_space, self.has_mask = network_obs_space(observation_space)
        self.unwraps_obs = self.has_mask and set(observation_space.keys()) == {"observation", "action_mask"}  # type: ignore[attr-defined]
        self.distribution = distribution or distribution_for(action_space)
        self.network = network
        self.recurrent = hasattr(network, "initial_state")
        self.log_std: nn.Parameter | None = None
        self.unused_settings: Mapping[str, str] = {}
        """Settings that have no effect with this network, and why."""
        self._check_network(action_space)

    def _check_network(self, action_space: spaces.Space) -> None:
        """Try the network on some observations, so that a wrong number of outputs is an error at once."""
        built_in = isinstance(self.network, (Layers, RecurrentNetwork))
        rows = example_rows(self.network_space)
        shape = try_network("actor", self.network, self._outputs_of_rows, rows, built_in=built_in)
        distribution = self.distribution
        has_deviations = isinstance(distribution, (Gaussian, SquashedGaussian, BoundedGaussian))
        only_means = has_deviations and shape == (NUM_ROWS, distribution.num)  # type: ignore[attr-defined]
        if only_means:
            self.log_std = nn.Parameter(torch.zeros(distribution.num))  # type: ignore[attr-defined]
        elif shape != (NUM_ROWS, distribution.size):
            raise ConfigError(
                f"the network of the part 'actor' returned {shape} for {NUM_ROWS} observations; actions of "
                f"{action_space} need {(NUM_ROWS, distribution.size)}"
            )

    def _outputs_of_rows(self, rows: Any) -> Any:
        if not self.recurrent:
            return self.run_rows(self.network, rows)
        num = _leading_shape(self.network_space, rows)[0]
        state = self.initial_state(num)
        outputs, after = self.network(rows, state)
        shapes, shapes_after = ({key: tuple(part.shape) for key, part in each.items()} for each in (state, after))
        if shapes != shapes_after or any(shape[:1] != (num,) for shape in shapes.values()):
            raise ConfigError(
                f"the network of the part 'actor' has initial_state({num}) of shapes {shapes}, and returned a state of "
                f"{shapes_after} for {num} observations; both need a first dimension of {num}, and be alike"
            )
        return outputs

    def initial_state(self, num: int) -> State:
        """Return the recurrent state at the start of `num` episodes; empty for a feed-forward network."""
        return self.network.initial_state(num) if self.recurrent else {}  # type: ignore[operator]

    def forward(self, obs: Any, state: State) -> tuple[Tensor, State]:
        """Return the parameters of the distribution, and the next recurrent state."""
        params, state = self._run_network(self.network_obs(obs), state)
        return self.apply_mask(params, obs), state

    def network_obs(self, obs: Any) -> Any:
        """Return the part of observations that the network sees: all but the mask."""
        if not self.has_mask:
            return obs
        rest = {key: part for key, part in obs.items() if key != "action_mask"}
        return next(iter(rest.values())) if self.unwraps_obs else rest

    def apply_mask(self, params: Tensor, obs: Any) -> Tensor:
        """Return the parameters of the distribution with masked actions made impossible."""
        return self.distribution.apply_mask(params, obs["action_mask"]) if self.has_mask else params

    def observe(self, obs: Any) -> None:
        """Update the normaliser of observations, if there is one, with a batch of tensors."""
        encoder = next(iter(self.network.children()), None)
        if isinstance(encoder, Encoder):
            encoder.observe(self.network_obs(obs))

    def run_rows(self, network: nn.Module, obs: Any) -> Tensor:
        """Return the outputs of a feed-forward network, [..., size]. One of a user is always called with [N, ...]."""
        if isinstance(network, Layers):
            return network(obs)
        leading = _leading_shape(self.network_space, obs)
        if len(leading) == 1:
            return network(obs)
        rows = network(tree_map(lambda part: part.flatten(0, len(leading) - 1), obs))
        return rows.reshape(*leading, *rows.shape[1:])

    def _run_network(self, obs: Any, state: State) -> tuple[Tensor, State]:
        params, state = self.network(obs, state) if self.recurrent else (self.run_rows(self.network, obs), state)
        return self._with_log_std(params), state

    def _with_log_std(self, params: Tensor) -> Tensor:
        return params if self.log_std is None else torch.cat([params, self.log_std.expand_as(params)], -1)

    def outputs(self, obs: Any, state: State) -> tuple[Array, State]:
        """Return the parameters of the distribution for observations, [B, size], and the next recurrent state."""
        with torch.inference_mode():
            params, state = self(tree_map(torch.from_numpy, obs), state)
        return params.detach().numpy(), state  # detached: a view of a parameter requires a gradient even here

    def act(self, obs: Any, state: State, random: np.random.Generator | None) -> tuple[Array, State]:
        """Return an action for every observation, [B, ...]: sampled, or without a generator the most likely one."""
        params, state = self.outputs(obs, state)
        return self.distribution.mode(params) if random is None else self.distribution.sample(params, random), state

    def acting(
        self, random: np.random.Generator | None, explorer: Explorer | None = None, first_step: int = 0
    ) -> ActingFunction:
        """Return `(obs, state) -> (action, state)` with the current weights: faster than `act` over many steps.

        Args:
            random: the generator of exploration; None takes the most likely actions.
            explorer: how actions are chosen; by default they are sampled.
            first_step: the number of steps that the environments have taken, for explorers that depend on it.
        """
        plain = not (self.has_mask or self.recurrent) and self.log_std is None
        if random is None or explorer is None or type(explorer) is Sample:
            actor: ActingFunction | None
            actor = make_numpy_actor(self.network, self.distribution, random) if plain else None
            actor = actor or make_feature_actor(self, random)
            return actor or (lambda obs, state: self.act(obs, state, random))
        outputs = explorer.outputs_of(self, random)
        complete = not isinstance(self.distribution, Gaussian)  # the outputs in numpy are without deviations
        if outputs is None and plain and complete:
            fast = make_numpy_actor(self.network, self.distribution, None)
            outputs = None if fast is None else fast.last_outputs_for
        return ExploringActor(self, explorer, random, first_step, outputs)

    def log_prob(self, batch: Batch) -> Tensor:
        """Return log π(a|s) of every step of concatenated whole episodes, [N]."""
        return self.distribution.log_prob(self.params(batch), as_tensor(batch["action"]))

    def params(self, batch: Batch) -> Tensor:
        """Return the parameters of the distribution for every row of a batch, [N, size].

        A recurrent network runs over each of the batch's segments (see `rl.segments`), or of its whole episodes.
        """
        obs = tree_map(as_tensor, batch["obs"])
        if not self.recurrent:
            return self(obs, {})[0]
        return self.params_of_features(self.features(batch), obs)

    def features(self, batch: Batch) -> Tensor:
        """Return what a recurrent network computes for every row of concatenated segments or episodes, [N, ...]."""
        in_segments = has_segments(batch)
        lengths = as_tensor(batch["segment"] if in_segments else batch["length"])
        state = tree_map(as_tensor, batch["state"]) if in_segments else self.initial_state(len(lengths))
        return run_segments(self.network, self.network_obs(tree_map(as_tensor, batch["obs"])), lengths, state)

    def params_of_features(self, features: Tensor, obs: Any) -> Tensor:
        """Return the parameters of the distribution, from the features that `features` returned."""
        params = self.network.head(features) if isinstance(self.network, RecurrentNetwork) else features
        return self.apply_mask(self._with_log_std(params), obs)


class ExploringActor:
    """Acts with a policy as an explorer decides."""

    def __init__(
        self,
        policy: Policy,
        explorer: Explorer,
        random: np.random.Generator,
        step: int,
        outputs: Callable[[Any], Array] | None,
    ) -> None:
        self.policy, self.explorer, self.random, self.step = policy, explorer, random, step
        self._outputs = outputs
        self.slots: list[int] | None = None
        """The slots of the next observations, if they are not those of all."""

    def __call__(self, obs: Any, state: State) -> tuple[Array, State]:
        """Return an action for every observation, [B, ...], and the next recurrent state."""
        actions = self.explorer.choose_without_outputs(self.step, num_rows(obs), self.random)
        self.step += 1
        if actions is None or self.policy.recurrent:  # a recurrent state also follows the random steps
            if self._outputs is None:
                outputs, state = self.policy.outputs(obs, state)
            else:
                outputs = self._outputs(obs)
            if actions is None:
                explorer = self.explorer if self.slots is None else self.explorer.at_slots(self.slots)
                actions = explorer.choose(self.policy.distribution, outputs, self.random)
        return actions, state


def _leading_shape(space: spaces.Space, obs: Any) -> tuple[int, ...]:
    """Return the shape of a batch of observations without that of a single one."""
    while isinstance(space, (spaces.Dict, spaces.Tuple)):
        key, space = next(iter(space.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)))
        obs = obs[str(key)]
    return tuple(obs.shape[: obs.ndim - len(space.shape or ())])


def as_tensor(array: Array | Tensor) -> Tensor:
    """Return an array as a tensor. A read-only array, as from another process, is copied: torch would write to it."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def make_policy(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    network: Any = "mlp",
    hidden: Sequence[int] = (128,),
    seed: int | None = None,
) -> Policy:
    """Make an untrained policy. The same seed gives the same weights; torch's global generator is not changed.

    Args:
        observation_space: the observation space, with the action mask if there is one.
        action_space: the action space.
        network: `mlp`, `lstm`, or a function of the two spaces that returns a network.
        hidden: the widths of the hidden layers.
        seed: the seed of the weights.
    """
    obs_space, _ = network_obs_space(observation_space)
    with seeded_weights(seed):
        return Policy(observation_space, action_space, network_for(obs_space, action_space, network, hidden))


@contextmanager
def seeded_weights(seed: int | None) -> Iterator[None]:
    """Seed the initial weights of networks made meanwhile; torch's global generator is restored."""
    with seeded_globally(seed):
        if seed is not None:
            torch.manual_seed(seed)  # a network may create its parameters on a GPU
        yield
