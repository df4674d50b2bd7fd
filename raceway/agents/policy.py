"""A policy: a network, the distribution of its actions, and `(obs, state) -> (action, state)`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.distributions import EpsilonGreedy, Gaussian, distribution_for
from raceway.agents.networks import Encoder, Normaliser, State, actor_critic, custom_actor_critic, network_for
from raceway.agents.numpy_inference import make_numpy_actor
from raceway.autograd.layers import Layers, run_layers
from raceway.checks import check_choice
from raceway.errors import INTERRUPTS, ConfigError
from raceway.rl import Batch, empty, network_obs_space, tree_map
from raceway.rl.seeding import seeded_globally

Array = np.ndarray
Weights = dict[str, Array]
"""The parameters and buffers of a network by name, as arrays."""


class Policy(nn.Module):
    """A network that acts, optionally with a critic. It is what an algorithm trains."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        network: nn.Module,
        critic: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.network_space, self.has_mask = network_obs_space(observation_space)
        self.unwraps_obs = self.has_mask and set(observation_space.keys()) == {"observation", "action_mask"}  # type: ignore[attr-defined]
        self.distribution = distribution_for(action_space)
        self.network, self.critic = network, critic
        self.rewards = Normaliser(1) if critic is not None else None
        """Statistics of discounted returns, by which rewards may be scaled."""
        self.recurrent = hasattr(network, "initial_state")
        self.log_std: nn.Parameter | None = None
        self._check_output()

    def _check_output(self) -> None:
        """Try the network on one observation, so that a wrong number of outputs is an error at once."""
        with torch.no_grad():
            example = tree_map(torch.from_numpy, empty(self.network_space, (1,)))
            try:
                output = self._run_network(example, self.initial_state(1))[0]
            except INTERRUPTS:
                raise
            except Exception as error:
                raise ConfigError(f"the network failed on an observation of {self.network_space}: {error}") from error
        size = self.distribution.size
        shape = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
        if isinstance(self.distribution, Gaussian) and shape == (1, self.distribution.num):
            self.log_std = nn.Parameter(torch.zeros(self.distribution.num))
        elif shape != (1, size):
            raise ConfigError(f"the network returned {shape} for one observation; the actions need (1, {size})")

    def initial_state(self, num: int) -> State:
        """Return the recurrent state at the start of `num` episodes; empty for a feed-forward network."""
        return self.network.initial_state(num) if self.recurrent else {}  # type: ignore[operator]

    def forward(self, obs: Any, state: State) -> tuple[Tensor, State]:
        """Return the parameters of the distribution, and the next recurrent state."""
        params, state = self._run_network(self._network_obs(obs), state)
        return self._apply_mask(params, obs), state

    def _network_obs(self, obs: Any) -> Any:
        """Return the part of observations that the network sees: all but the mask."""
        if not self.has_mask:
            return obs
        rest = {key: part for key, part in obs.items() if key != "action_mask"}
        return next(iter(rest.values())) if self.unwraps_obs else rest

    def _apply_mask(self, params: Tensor, obs: Any) -> Tensor:
        return self.distribution.apply_mask(params, obs["action_mask"]) if self.has_mask else params

    def evaluate(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return the parameters of the distribution, [N, size], and the values V(s), [N]."""
        assert self.critic is not None
        network_obs = self._network_obs(obs)
        network, critic = self.network, self.critic
        actor_layers: list[nn.Module]
        critic_layers: list[nn.Module]
        if isinstance(network, Layers) and isinstance(critic, nn.Linear):  # a second head
            shared, actor_layers, critic_layers = network.features(network_obs), list(network)[-1:], [critic]
        elif isinstance(network, Layers) and isinstance(critic, Layers) and critic[0] is network[0]:
            shared, actor_layers, critic_layers = network[0](network_obs), list(network)[1:], list(critic)[1:]
        else:
            return self(obs, {})[0], critic(network_obs).squeeze(-1)
        params = self._apply_mask(run_layers(actor_layers, shared), obs)
        return params, run_layers(critic_layers, shared).squeeze(-1)

    def values(self, obs: Any) -> Tensor:
        """Return V(s), [N]."""
        assert self.critic is not None
        network_obs = self._network_obs(obs)
        if isinstance(self.critic, nn.Linear) and isinstance(self.network, Layers):
            return run_layers([self.critic], self.network.features(network_obs)).squeeze(-1)
        return self.critic(network_obs).squeeze(-1)

    def set_epsilon(self, epsilon: Any) -> None:
        """Set the exploration rate ε, one for all slots or one for each. It is part of the weights."""
        self.epsilon.copy_(torch.as_tensor(epsilon))  # type: ignore[operator]

    def observe(self, rows: Batch) -> None:
        """Update the normalisers, if there are any, with a batch of tensors."""
        encoder = next(iter(self.network.children()), None)
        if isinstance(encoder, Encoder) and encoder.normaliser is not None:
            encoder.normaliser.observe(encoder.flat(self._network_obs(rows["obs"])).reshape(-1, encoder.size))
        if self.rewards is not None and "running_return" in rows:
            self.rewards.observe(rows["running_return"].reshape(-1, 1))

    def _run_network(self, obs: Any, state: State) -> tuple[Tensor, State]:
        params, state = self.network(obs, state) if self.recurrent else (self.network(obs), state)
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand_as(params)], -1)
        return params, state

    def act(self, obs: Any, state: State, random: np.random.Generator | None) -> tuple[Array, State]:
        """Return an action for every observation, [B, ...]: sampled, or without a generator the most likely one."""
        with torch.inference_mode():
            params, state = self(tree_map(torch.from_numpy, obs), state)
        arrays = params.detach().numpy()  # detached: a view of a parameter requires a gradient even in inference mode
        return self.distribution.mode(arrays) if random is None else self.distribution.sample(arrays, random), state

    def actor(self, random: np.random.Generator | None) -> Callable[[Any, State], tuple[Array, State]]:
        """Return `(obs, state) -> (action, state)` with the current weights: faster than `act` over many steps."""
        plain = not (self.has_mask or self.recurrent) and self.log_std is None
        actor = make_numpy_actor(self.network, self.distribution, random) if plain else None
        return actor or (lambda obs, state: self.act(obs, state, random))

    def log_prob(self, batch: Batch) -> Tensor:
        """Return log π(a|s) of every step of concatenated whole episodes, [N]."""
        return self.distribution.log_prob(self.params(batch), as_tensor(batch["action"]))

    def params(self, batch: Batch) -> Tensor:
        """Return the parameters of the distribution for every step, [N, size], with recurrence within each episode."""
        obs = tree_map(as_tensor, batch["obs"])
        if not self.recurrent:
            return self(obs, {})[0]
        lengths = as_tensor(batch["length"])
        episode = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        step = torch.arange(len(episode)) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
        longest, num = int(lengths.max()), len(lengths)
        # Padding must be a valid observation, which zeros are not in every space.
        padded = tree_map(lambda x: x[0].expand(longest, num, *x.shape[1:]).index_put((step, episode), x), obs)
        state, rows = self.initial_state(num), []
        for t in range(longest):
            params, state = self(tree_map(lambda x, t=t: x[t], padded), state)
            rows.append(params)
        return torch.stack(rows)[step, episode]

    def weights(self) -> Weights:
        """Return the parameters and buffers as arrays, which share the network's memory."""
        return {name: value.detach().cpu().numpy() for name, value in self._named_tensors()}

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of `state_dict`, in a third of its time."""
        yield from self.named_parameters()
        yield from self.named_buffers()

    def load(self, weights: Weights) -> None:
        """Load parameters and buffers."""
        with torch.no_grad():
            for name, value in self._named_tensors():
                if value.device.type == "cpu":
                    np.copyto(value.detach().numpy(), weights[name])
                else:
                    value.copy_(torch.from_numpy(np.array(weights[name])))

    def sha256(self) -> str:
        """Return a hash of all parameters and buffers, with their names and shapes."""
        digest = hashlib.sha256()
        for name, value in sorted(self.weights().items()):
            digest.update(f"{name} {value.dtype} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()


def as_tensor(array: Array | Tensor) -> Tensor:
    """Return an array as a tensor. A read-only array, as from another process, is copied: torch would write to it."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(array if array.flags.writeable else array.copy())


POLICY_KINDS = ("actor", "actor-critic", "values")


def make_policy(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    network: Any = "mlp",
    hidden: Sequence[int] = (128,),
    seed: int | None = None,
    kind: str = "actor",
    normalise: bool = False,
    num_slots: int = 1,
    activation: str | None = None,
    shared: bool = False,
) -> Policy:
    """Make an untrained policy. The same seed gives the same weights; torch's global generator is not changed.

    Args:
        observation_space: the observation space, with the action mask if there is one.
        action_space: the action space.
        network: `mlp`, `lstm`, or a function of the two spaces that returns a network; for an actor-critic it may
            return two, the actor and the critic, whose output is [N, 1].
        hidden: the widths of the hidden layers.
        seed: the seed of the weights.
        kind: `actor`; `actor-critic`, with a critic for the value of a state; or `values`, a Q-network that acts
            ε-greedily.
        normalise: whether observations are normalised by their running statistics (actor-critic only).
        num_slots: the number of environments that act at once, each with its own ε (`values` only).
        activation: `tanh` or `relu`, between layers (actor-critic only). By default `relu` for images, else `tanh`.
        shared: whether actor and critic are one network with two heads (actor-critic only).
    """
    obs_space, _ = network_obs_space(observation_space)
    if check_choice("kind of policy", kind, POLICY_KINDS) != "actor" and network == "lstm":
        raise ConfigError("the lstm network is supported by reinforce only. Use mlp, or your own network.")
    with seeded_globally(seed):
        if seed is not None:
            torch.manual_seed(seed)  # a network may create its parameters on a GPU
        critic: nn.Module | None = None
        if kind == "actor-critic":
            module, critic = actor_critic(obs_space, action_space, tuple(hidden), normalise, activation, shared)
            if network != "mlp":
                module, critic = custom_actor_critic(obs_space, action_space, network, critic)  # type: ignore[assignment]
        else:
            module = network_for(obs_space, action_space, network, hidden)  # type: ignore[assignment]
        policy = Policy(observation_space, action_space, module, critic)
    return _make_epsilon_greedy(policy, action_space, num_slots) if kind == "values" else policy


def _make_epsilon_greedy(policy: Policy, space: spaces.Space, num_slots: int) -> Policy:
    """Make a policy act ε-greedily, with the outputs of its network as Q-values."""
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(f"a Q-network needs discrete actions (Discrete), not {space}")
    policy.distribution = EpsilonGreedy(int(space.n), int(space.start), num_slots)
    policy.register_buffer("epsilon", torch.from_numpy(policy.distribution.epsilon))
    return policy
