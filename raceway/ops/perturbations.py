"""Perturbed weights: workers roll out episodes with them, and the driver estimates a gradient from the returns.

Weights travel to the workers once per iteration. What they return of a direction is its number and the totals of its
two episodes: the noise follows from the number, on both sides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raceway.agents import Agent, Policy
from raceway.agents.modes import acting_mode
from raceway.agents.networks import Normaliser
from raceway.flow import Shard, injected
from raceway.learner.learner import Learner
from raceway.ops.report import TrainStats
from raceway.ops.rollouts import RolloutSettings, RolloutWorker
from raceway.ops.train import Gradients
from raceway.rl import Batch, Trials, direction_noise, episode_sums, sum_of_directions, tree_map
from raceway.rl.episode_info import EPISODE_INFO, concat_episodes
from raceway.rl.seeding import Purpose, derive_seed
from raceway.state import Stateful

Array = np.ndarray
_LOST = "episode_lost"


@dataclass(frozen=True, kw_only=True)
class PerturbationSettings(RolloutSettings):
    """The environment and agent of rollouts with perturbed weights, and how weights are perturbed."""

    num_directions: int
    """Directions per iteration, over all shards."""
    sigma: float
    """Standard deviation σ of the noise."""

    def directions(self, shard: int, number: int) -> range:
        """Return the numbers of the directions of a shard in an iteration. Shards take turns."""
        first = number * self.num_directions
        return range(first + shard, first + self.num_directions, self.num_shards)

    @property
    def noise_seed(self) -> int:
        """The seed of the noise."""
        return noise_seed(self.seed)


def noise_seed(seed: int) -> int:
    """Return the seed of the noise of a run."""
    return derive_seed(seed, Purpose.PERTURBATIONS)


class PerturbationWorker(RolloutWorker):
    """Rolls out two episodes in each direction, with θ + σ ε and θ - σ ε, that start from the same seed."""

    settings: PerturbationSettings

    def __init__(self, settings: PerturbationSettings, name: str = "") -> None:
        super().__init__(settings, name)
        self._statistics: ObservationStatistics | None = None

    def sample(self, *, shard: Shard = injected, number: int = injected) -> Trials:
        """Roll out the episodes of a shard's directions in an iteration."""
        settings = self.settings
        collector = self._collector(0 if settings.independent_items else shard.number, shard.number)
        directions, weights, batches = settings.directions(shard.number, number), ParameterVector(self.agent), []
        statistics = self._statistics = self._statistics or ObservationStatistics(self.agent.actor)
        statistics.clear()
        base = weights.read()
        try:
            for direction in directions:
                noise = np.float32(settings.sigma) * direction_noise(settings.noise_seed, direction, len(base))
                for perturbed in (base + noise, base - noise):
                    weights.write(perturbed)
                    with acting_mode(self.agent):
                        batches.append(collector.episodes([1], direction))
                    statistics.observe(batches[-1]["obs"])
        finally:
            weights.write(base)
        return Trials({"direction": np.array(directions, np.int64), **_totals(batches), **statistics.columns()})


def _totals(episodes: Sequence[Batch]) -> Batch:
    """Return the totals of some episodes, [F], and what is reported of them, if there is anything."""
    sums = [episode_sums(batch["reward"], batch["length"]) for batch in episodes]
    totals: Batch = {
        "episode_return": np.concatenate([np.empty(0), *sums]),
        "episode_length": np.array([int(batch["length"].sum()) for batch in episodes], np.int32),
    }
    info = concat_episodes([batch.get(EPISODE_INFO) for batch in episodes], [1] * len(episodes))
    lost = [batch[_LOST] for batch in episodes if _LOST in batch]
    return totals | ({} if info is None else {EPISODE_INFO: info}) | ({_LOST: np.concatenate(lost)} if lost else {})


class ParameterVector:
    """The parameters of an agent as one vector. Buffers, such as the statistics of normalisers, are not part of it."""

    def __init__(self, agent: Agent) -> None:
        self._parameters = dict(agent.named_parameters())
        self.size = sum(parameter.numel() for parameter in self._parameters.values())

    def read(self) -> Array:
        """Return a copy of the parameters, [size]."""
        return np.concatenate([parameter.detach().cpu().numpy().ravel() for parameter in self._parameters.values()])

    def write(self, vector: Array) -> None:
        """Set the parameters."""
        with torch.no_grad():
            for name, part in self.split(vector).items():
                self._parameters[name].copy_(torch.from_numpy(part))

    def split(self, vector: Array) -> dict[str, Array]:
        """Return the parts of a vector by the names of the parameters, in their shapes."""
        parts, begin = dict[str, Array](), 0
        for name, parameter in self._parameters.items():
            parts[name] = vector[begin : begin + parameter.numel()].reshape(tuple(parameter.shape))
            begin += parameter.numel()
        return parts


class ObservationStatistics:
    """The statistics of some observations, apart from those by which a policy normalises them.

    Args:
        policy: the policy; nothing is counted if it does not normalise.
    """

    def __init__(self, policy: Policy) -> None:
        self._normalises = any(_normalisers(policy))
        self._policy = copy.deepcopy(policy) if self._normalises else policy

    def clear(self) -> None:
        """Forget all observations."""
        for normaliser in _normalisers(self._policy) if self._normalises else ():
            normaliser.clear()

    def observe(self, obs: Any) -> None:
        """Count observations."""
        if self._normalises:
            self._policy.observe(tree_map(torch.from_numpy, obs))

    def columns(self) -> Batch:
        """Return the statistics as a column of a batch: number, means and variances; {} if nothing is normalised."""
        if not self._normalises:
            return {}
        parts = _normalisers(self._policy)
        moments = [parts[0].count[None].float(), *(part.mean for part in parts), *(part.var for part in parts)]
        return {"obs_moments": torch.cat(moments).numpy()[None]}


def _normalisers(policy: Policy) -> list[Normaliser]:
    return [module for module in policy.modules() if isinstance(module, Normaliser)]


class MergeObservations(Stateful):
    """Merge the statistics of observations from all shards, in their order, into the normalisers of the policy."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def __call__(self, batch: Batch) -> Trials:
        """Update the normalisers, and return the batch."""
        normalisers = _normalisers(self.learner.agent.actor)
        sizes = [len(part.mean) for part in normalisers]
        for moments in batch.get("obs_moments", ()):
            parts = torch.from_numpy(np.array(moments[1:])).double().split([*sizes, *sizes])
            for normaliser, mean, var in zip(normalisers, parts, parts[len(sizes) :], strict=False):
                normaliser.merge(float(moments[0]), mean, var)
        return Trials(batch)


class EstimateGradient(Stateful):
    """Estimate the gradient of minus the expected return from a batch of perturbed episodes.

    Args:
        learner: its agent is perturbed.
        coefficients: the coefficient of each direction, [P], from the returns of its two episodes, [P, 2].
        seed: the seed of the run.
        l2: the coefficient of the penalty ½ |θ|².
        alive_bonus: what is subtracted from every reward.
    """

    def __init__(
        self,
        learner: Learner,
        coefficients: Callable[[Array], Array],
        seed: int,
        *,
        l2: float = 0.0,
        alive_bonus: float = 0.0,
    ) -> None:
        self.learner, self.coefficients, self.seed = learner, coefficients, noise_seed(seed)
        self.l2, self.alive_bonus = l2, alive_bonus
        self.weights = ParameterVector(learner.agent)

    def __call__(self, batch: Trials) -> Gradients:
        """Return the gradient: l2 · θ - Σ c ε, over the directions in the order of their numbers."""
        order = np.argsort(batch["direction"])
        totals = batch["episode_return"] - self.alive_bonus * batch["episode_length"]
        coefficients = self.coefficients(totals.reshape(-1, 2)[order])
        size = self.weights.size
        gradient = -sum_of_directions(coefficients, batch["direction"][order], self.seed, size)
        if self.l2:
            gradient += np.float32(self.l2) * self.weights.read()
        metrics = {"loss": -float(totals.mean()), "return_std": float(totals.std())}
        return Gradients(self.weights.split(gradient), TrainStats.of(batch, metrics))
