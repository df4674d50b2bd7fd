"""A policy: a network, the distribution its numbers stand for, and `(obs, state) -> (action, state)`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.distributions import EpsilonGreedy, Gaussian, distribution_for
from raceway.agents.networks import Encoder, Normaliser, State, actor_critic, network_for, pair_for
from raceway.agents.numpy_inference import numpy_actor
from raceway.autograd.layers import Layers, through
from raceway.checks import check_choice
from raceway.errors import ConfigError
from raceway.rl import Batch, empty, obs_space_of, tree_map

Array = np.ndarray
Weights = dict[str, Array]
"""The parameters of a network by name, as they travel."""


class Policy(nn.Module):
    """What acts, and what is trained."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        network: nn.Module,
        critic: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.seen_space, self.has_mask = obs_space_of(observation_space)
        self.unwraps = self.has_mask and set(observation_space.keys()) == {"observation", "action_mask"}  # type: ignore[attr-defined]
        self.distribution = distribution_for(action_space)
        self.network, self.critic = network, critic
        self.rewards = Normaliser(1) if critic is not None else None
        """The spread of discounted returns, by which rewards may be scaled."""
        self.recurrent = hasattr(network, "initial_state")
        self.log_std: nn.Parameter | None = None
        self._check()

    def _check(self) -> None:
        """Try the network on one observation, so that a wrong number of outputs is told now."""
        with torch.no_grad():
            example = tree_map(torch.from_numpy, empty(self.seen_space, (1,)))
            try:
                given = self._run(example, self.initial_state(1))[0]
            except Exception as error:
                raise ConfigError(f"the network fails on an observation of {self.seen_space}: {error}") from error
        wanted = self.distribution.size
        shape = tuple(given.shape) if isinstance(given, Tensor) else f"a {type(given).__name__}"
        if isinstance(self.distribution, Gaussian) and shape == (1, self.distribution.num):
            self.log_std = nn.Parameter(torch.zeros(self.distribution.num))
        elif shape != (1, wanted):
            raise ConfigError(f"the network gives {shape} for one observation; the actions need (1, {wanted})")

    def initial_state(self, num: int) -> State:
        """Return what is remembered at the start of so many episodes: nothing, of a feed-forward network."""
        return self.network.initial_state(num) if self.recurrent else {}  # type: ignore[operator]

    def forward(self, obs: Any, state: State) -> tuple[Tensor, State]:
        """Return the parameters of the distribution, and what is to be remembered."""
        params, state = self._run(self._seen(obs), state)
        return self._allowed(params, obs), state

    def _seen(self, obs: Any) -> Any:
        """Return what the network sees of observations: not the mask."""
        if not self.has_mask:
            return obs
        rest = {key: part for key, part in obs.items() if key != "action_mask"}
        return next(iter(rest.values())) if self.unwraps else rest

    def _allowed(self, params: Tensor, obs: Any) -> Tensor:
        return self.distribution.masked(params, obs["action_mask"]) if self.has_mask else params

    def evaluate(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return the parameters of the distribution and the values V(s), [N, size] and [N]."""
        assert self.critic is not None
        seen = self._seen(obs)
        network, critic = self.network, self.critic
        if isinstance(network, Layers) and isinstance(critic, nn.Linear):  # a second head
            common, acting, valuing = network.features(seen), list(network)[-1:], list[nn.Module]([critic])
        elif isinstance(network, Layers) and isinstance(critic, Layers) and critic[0] is network[0]:
            common, acting, valuing = network[0](seen), list(network)[1:], list(critic)[1:]
        else:
            return self(obs, {})[0], critic(seen).squeeze(-1)
        return self._allowed(through(acting, common), obs), through(valuing, common).squeeze(-1)

    def values(self, obs: Any) -> Tensor:
        """Return V(s), [N]."""
        assert self.critic is not None
        seen = self._seen(obs)
        if isinstance(self.critic, nn.Linear) and isinstance(self.network, Layers):
            return through([self.critic], self.network.features(seen)).squeeze(-1)
        return self.critic(seen).squeeze(-1)

    def set_epsilon(self, epsilon: Any) -> None:
        """Set the chance of an action drawn by chance: one for all, or one for every slot. It goes with the weights."""
        self.epsilon.copy_(torch.as_tensor(epsilon))  # type: ignore[operator]

    def observe(self, rows: Batch) -> None:
        """Show a batch of tensors to the normalisers, if there are any."""
        encoder = next(iter(self.network.children()), None)
        if isinstance(encoder, Encoder) and encoder.normaliser is not None:
            encoder.normaliser.observe(encoder.flat(self._seen(rows["obs"])).reshape(-1, encoder.size))
        if self.rewards is not None and "running_return" in rows:
            self.rewards.observe(rows["running_return"].reshape(-1, 1))

    def _run(self, obs: Any, state: State) -> tuple[Tensor, State]:
        params, state = self.network(obs, state) if self.recurrent else (self.network(obs), state)
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand_as(params)], -1)
        return params, state

    def act(self, obs: Any, state: State, random: np.random.Generator | None) -> tuple[Array, State]:
        """Return an action for every observation, [B, ...]: drawn, or the most likely if there is no generator."""
        with torch.inference_mode():
            params, state = self(tree_map(torch.from_numpy, obs), state)
        numbers = params.detach().numpy()  # a view of a parameter has a gradient even so
        return self.distribution.mode(numbers) if random is None else self.distribution.draw(numbers, random), state

    def actor(self, random: np.random.Generator | None) -> Callable[[Any, State], tuple[Array, State]]:
        """Return `(obs, state) -> (action, state)` for many steps with the weights as they are now. It is faster."""
        plain = not (self.has_mask or self.recurrent) and self.log_std is None
        found = numpy_actor(self.network, self.distribution, random) if plain else None
        return found or (lambda obs, state: self.act(obs, state, random))

    def log_prob(self, batch: Batch) -> Tensor:
        """Return log π(a|s) of every step of whole episodes that lie behind one another, [N]."""
        return self.distribution.log_prob(self.params(batch), as_tensor(batch["action"]))

    def params(self, batch: Batch) -> Tensor:
        """Return the parameters of the distribution for every step, remembering within each episode, [N, size]."""
        obs = tree_map(as_tensor, batch["obs"])
        if not self.recurrent:
            return self(obs, {})[0]
        lengths = as_tensor(batch["length"])
        episode = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        step = torch.arange(len(episode)) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
        longest, num = int(lengths.max()), len(lengths)
        # What fills the gaps must be an observation too: of some spaces, zeros are none.
        padded = tree_map(lambda x: x[0].expand(longest, num, *x.shape[1:]).index_put((step, episode), x), obs)
        state, rows = self.initial_state(num), []
        for place in range(longest):
            params, state = self(tree_map(lambda x, at=place: x[at], padded), state)
            rows.append(params)
        return torch.stack(rows)[step, episode]

    def weights(self) -> Weights:
        """Return the parameters as arrays, which share the network's memory."""
        return {name: value.detach().cpu().numpy() for name, value in self._named()}

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """Give what `state_dict` has, in a third of the time."""
        yield from self.named_parameters()
        yield from self.named_buffers()

    def load(self, weights: Weights) -> None:
        """Take over parameters."""
        with torch.no_grad():
            for name, value in self._named():
                if value.device.type == "cpu":
                    np.copyto(value.detach().numpy(), weights[name])
                else:
                    value.copy_(torch.from_numpy(np.array(weights[name])))

    def sha256(self) -> str:
        """Return a hash of every parameter, with its name and shape."""
        digest = hashlib.sha256()
        for name, value in sorted(self.weights().items()):
            digest.update(f"{name} {value.dtype} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()


def as_tensor(array: Array | Tensor) -> Tensor:
    """Return an array as a tensor. One that came from another process is read-only, which torch does not know."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(array if array.flags.writeable else array.copy())


KINDS = ("actor", "actor-critic", "values")


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
    """Make an untrained policy. A seed gives the same weights every time; torch's own generator is left alone.

    Args:
        observation_space: what is seen.
        action_space: what is done.
        network: `mlp`, `lstm`, or a function of the two spaces that returns a network, or of an actor-critic two: one
            that acts, and one that gives a value, [N, 1].
        hidden: widths of its hidden layers.
        seed: of its weights.
        kind: `actor`; `actor-critic`, with a second network for the value of a state; or `values`, where the numbers
            are values of choices, of which the best is made but for a chance of ε.
        normalise: whether observations are normalised by what has been seen so far; of an actor-critic.
        activation: `tanh` or `relu`, between the layers of an actor-critic; the usual one if none is given.
        shared: whether what acts and what values are one network with two heads; of an actor-critic.
        num_slots: environments that it plays at once; of `values`, where each has an ε of its own.
    """
    seen, _ = obs_space_of(observation_space)
    if check_choice("kind of policy", kind, KINDS) != "actor" and network == "lstm":
        raise ConfigError("the lstm is a network for reinforce so far. Use the mlp, or a network of your own.")
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        critic: nn.Module | None = None
        if kind == "actor-critic":
            made, critic = actor_critic(seen, action_space, tuple(hidden), normalise, activation, shared)
            if network != "mlp":
                made, critic = pair_for(seen, action_space, network, critic)  # type: ignore[assignment]
        else:
            made = network_for(seen, action_space, network, hidden)  # type: ignore[assignment]
        policy = Policy(observation_space, action_space, made, critic)
    return _greedy(policy, action_space, num_slots) if kind == "values" else policy


def _greedy(policy: Policy, space: spaces.Space, num_slots: int) -> Policy:
    """Have a policy choose by value."""
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(f"values are of actions to choose from (Discrete), not of {space}")
    policy.distribution = EpsilonGreedy(int(space.n), int(space.start), num_slots)
    policy.register_buffer("epsilon", torch.from_numpy(policy.distribution.epsilon))
    return policy
