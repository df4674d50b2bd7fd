"""TD3+BC: TD3 from a dataset, with a policy that is regularised towards the dataset's actions.

Paper: Fujimoto and Gu 2021, https://arxiv.org/abs/2106.06860

    minibatches of a dataset                          on every reader
       -> critics; every second time the actor        on the learner, one Adam step each
       -> targets of both, by Polyak averaging
       -> weights                                     to evaluations

Differs from the paper: normalised observations are clipped to ±10. Their statistics are part of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import mse_loss

from raceway.agents import Agent, Spaces
from raceway.agents.builders import deterministic_actor_and_critics
from raceway.agents.distributions import Bounded
from raceway.agents.q_ensembles import QEnsemble
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorDatasetConfig
from raceway.algorithms.sources import DatasetSource
from raceway.flow import Iter, ParIter
from raceway.injection import injected
from raceway.ops import AddDiscounts, LossAndMetrics, Objective, Target, TrainOneStep, TrainStats
from raceway.rl import Batch, q_scale, tree_map
from raceway.settings.field_types import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorDatasetConfig):
    """Settings of TD3+BC."""

    alpha: PositiveFloat = 2.5
    """Weight α of Q-values, scaled to a mean magnitude of 1, against the squared distance to the dataset's actions."""
    normalise_obs: bool = True
    """Normalise observations by the mean and standard deviation of those of the dataset."""
    target_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on the actions in the critics' targets, as a share of half the range of
    actions."""
    target_noise_limit: NonNegativeFloat = 0.5
    """Limit of that noise."""
    target_every: PositiveInt = 2
    """Update the actor and the target networks every N gradient steps."""


class NormalisedTwinCritics(Agent):
    """A deterministic policy and two critics, which normalise observations by the statistics of a dataset."""

    critics: QEnsemble

    def observe_dataset(self, batches: Iterable[Batch]) -> None:
        """Set the statistics to those of the observations before the steps."""
        encoder = getattr(self.critics, "encoder", None)  # critics of a user's own have none
        if encoder is not None and encoder.normalises:
            for batch in batches:
                obs = tree_map(lambda column: torch.tensor(column), batch["obs"])
                self.actor.observe(obs)
                encoder.observe(obs)

    def observe(self, rows: Batch) -> None:
        """Leave the statistics as they are: the dataset does not change."""


def agent(spaces: Spaces, cfg: Config) -> NormalisedTwinCritics:
    """Return the untrained agent."""
    actor, critics = deterministic_actor_and_critics(spaces, cfg, num=2, normalise=cfg.normalise_obs)
    return NormalisedTwinCritics(actor, critics=critics)


def critics_loss(
    agent: NormalisedTwinCritics, batch: Batch, *, noise: float, limit: float, random: torch.Generator = injected
) -> LossAndMetrics:
    """Return Σᵢ (Qᵢ(s, a) - y)² with y = r + γ min Q'(s', π'(s') + ε), averaged over the batch, [N].

    ε is normal noise with the deviation `noise`, clipped to ± `limit`; Q' and π' are the target networks.
    """
    with torch.no_grad():
        target = agent.target
        params = target.actor(batch["next_obs"], {})[0]
        noises = (torch.randn(params.shape, generator=random) * noise).clamp(-limit, limit).to(params.device)
        next_q = target.critics(batch["next_obs"], target.actor.distribution.actions(params, noises)).amin(0)
        td_target = batch["reward"] + batch["discount"] * next_q
    q_values = agent.critics(batch["obs"], batch["action"])
    return (q_values - td_target).square().mean(-1).sum(), {"q_values": q_values.detach().mean()}


def actor_loss(agent: NormalisedTwinCritics, batch: Batch, *, alpha: float) -> LossAndMetrics:
    """Return (π(s) - a)² - λ Q₁(s, π(s)) with λ = α / mean |Q₁|, averaged over the batch, [N].

    The distance is the mean over the dimensions of actions that are scaled to [-1, 1].
    """
    distribution = agent.actor.distribution
    assert isinstance(distribution, Bounded)
    actions = distribution.actions(agent.actor(batch["obs"], {})[0])
    q_values = agent.critics(batch["obs"], actions, num=1)[0]
    distance = mse_loss(distribution.unscaled_tensor(actions), distribution.unscaled_tensor(batch["action"]))
    return distance - q_scale(q_values, alpha) * q_values.mean(), {"action_distance": distance.detach()}


@algorithm("td3_bc", Config, agent=agent, actions=("box",), source=DatasetSource)
def td3_bc(minibatches: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    train = TrainOneStep(
        ctx.learner,
        critics=partial(critics_loss, noise=cfg.target_noise, limit=cfg.target_noise_limit),
        actor=Objective(loss=partial(actor_loss, alpha=cfg.alpha), every=cfg.target_every, whole_batch=True),
        targets=Target(("actor", "critics"), tau=cfg.tau, every=cfg.target_every),
    )
    return (
        minibatches.for_each(AddDiscounts(cfg.gamma))
        .gather_sync()
        .flatten()
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights())
    )
