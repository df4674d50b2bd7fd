"""Rainbow: six improvements of DQN in one algorithm.

Paper: Hessel et al. 2018, https://arxiv.org/abs/1710.02298

    store:    rollouts with noise -> n-step transitions    on every worker
                 -> prioritised replay
    replay:   sampled batches
                 -> one Adam step, with noise              on the learner
                 -> target network
                 -> new priorities                         to replay, before the next batch is sampled
                 -> weights                                to all workers
    in turn, with a fixed number of environment steps per gradient step

All six are in it: double Q-learning (the network chooses the next action, by expected values), prioritised replay with
the cross-entropy as priority and a β that rises to 1, dueling streams, n-step returns, the distribution of the return
on fixed atoms (C51), and noisy layers in both streams instead of ε-greedy exploration.

Differs from the paper: a priority is the cross-entropy instead of the KL divergence, which lacks the entropy of the
target; parallel environments; the noise of a rollout is sampled for each of them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch

from raceway.agents import NoisyGreedy, Spaces
from raceway.agents.noisy_networks import NoisyLinear, with_noise
from raceway.agents.q_agents import DistributionalAgent, feature_layers, headed_policy, num_actions
from raceway.agents.q_heads import Atoms, Dueling, of_action
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.flow import Iter, ParIter, union
from raceway.injection import injected
from raceway.ops import (
    ConcatBatches,
    CountSteps,
    LossOutput,
    MergeStats,
    ReplaySettings,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    Transitions,
    UpdatePriorities,
)
from raceway.rl import Batch, Fragment, project_distribution
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of Rainbow."""

    prioritised: ClassVar[bool] = True
    num_envs: PositiveInt = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 1
    """Steps per environment in one rollout fragment."""
    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers. The last one is that of a noisy layer in each stream."""
    lr: PositiveFloat = 6.25e-5
    """Learning rate."""
    n_step: PositiveInt = 3
    """Steps n of the n-step return."""
    num_atoms: PositiveInt = 51
    """Number of atoms of the distribution of the return."""
    v_min: float = -10.0
    """Return of the first atom. Discounted returns below it count as it."""
    v_max: float = 10.0
    """Return of the last atom. Discounted returns above it count as it."""
    sigma: PositiveFloat = 0.5
    """Initial deviation σ₀ of the noise, which is divided by the root of a layer's inputs."""
    alpha: Fraction = 0.5
    """Prioritisation exponent α."""
    beta: Fraction = 0.4
    """Initial importance-sampling exponent β."""
    beta_end: Fraction | None = 1.0
    """Final β, after a linear change over total_timesteps. Without either, β is constant."""
    learner_queue: Literal[1] = 1
    """Queue size, in batches, of a remote learner: 1, so that priorities arrive before the next batch is sampled."""

    @property
    def replay_settings(self) -> ReplaySettings:
        """Settings of the prioritised replay buffer."""
        settings = {
            "alpha": self.alpha,
            "beta": self.beta,
            "beta_end": self.beta_end,
            "beta_rows": self.total_timesteps,
        }
        return dataclasses.replace(super().replay_settings, **settings)  # type: ignore[arg-type]


def agent(spaces: Spaces, cfg: Config) -> DistributionalAgent:
    """Return an agent whose network has noisy dueling streams for the logits of the atoms of every action."""
    (*hidden, width), num = cfg.hidden or (None,), num_actions(spaces)
    trunk, size = feature_layers(spaces, cfg, hidden, own_width=width)
    dueling = Dueling(size, num, width, cfg.num_atoms, linear=partial(NoisyLinear, sigma=cfg.sigma))
    atoms = Atoms(num, cfg.num_atoms, cfg.v_min, cfg.v_max)
    return DistributionalAgent(headed_policy(spaces, cfg, trunk, dueling, atoms))


def explorer(spaces: Spaces, cfg: Config) -> NoisyGreedy:
    """Return an explorer that takes the best actions of the network with noise."""
    return NoisyGreedy()


def loss(agent: DistributionalAgent, batch: Batch, *, random: torch.Generator = injected) -> LossOutput:
    """Return the mean of w times the cross-entropy -Σᵢ mᵢ log pᵢ(s, a), which is the new priority; the batch is [N].

    m is the distribution Σ γᵏ rₖ + γⁿ Z'(s', a') projected to the atoms. The network chooses a', and the target network
    has the distribution Z' of it. w is the importance-sampling weight. Noise is sampled for each of the three passes.
    """
    obs, next_obs, support = batch["obs"], batch["next_obs"], agent.readout.support
    with torch.no_grad():
        with with_noise(agent, random):
            next_action = agent.expected(agent.distributions(next_obs), next_obs).argmax(-1)
        with with_noise(agent.target, random):
            next_probabilities = of_action(agent.target.distributions(next_obs), next_action).softmax(-1)
        target = project_distribution(support, batch["reward"], batch["discount"], next_probabilities)
    with with_noise(agent, random):
        log_probabilities = of_action(agent.distributions(obs), agent.action_index(batch)).log_softmax(-1)
    losses = -(target * log_probabilities).sum(-1)
    q_values = (log_probabilities.detach().exp() * support).sum(-1)
    return LossOutput((losses * batch["weight"]).mean(), {"q_values": q_values.mean()}, priorities=losses.detach())


@algorithm("rainbow", Config, agent=agent, explorer=explorer, actions=("discrete",))
def rainbow(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    store = (
        rollouts.for_each(Transitions(cfg.gamma, cfg.n_step))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(StoreToReplay(shards))
        .for_each(CountSteps(ctx.learner))
    )
    train = TrainOneStep(ctx.learner, loss, targets=Target(every=cfg.target_every))
    replay = (
        ctx.samples(shards, synchronous=True)
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(UpdatePriorities())
        .for_each(ctx.weights(every=cfg.updates_per_round))
    )
    return union(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
