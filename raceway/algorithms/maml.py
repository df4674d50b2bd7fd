"""MAML: model-agnostic meta-learning of policies that adapt to a new task in a few gradient steps.

Paper: Finn et al. 2017, https://arxiv.org/abs/1703.03400

    rollouts -> advantages                     on every worker, each shard in its own task
       -> one inner gradient step per task     n times, each followed by new rollouts
       -> K meta-updates with Adam             on the learner, through the inner steps
       -> weights                              to all workers, and new tasks

Differs from the paper: PPO's clipped objective and Adam instead of TRPO for the meta-update, and probability ratios in
the inner loss, which give the correct second derivatives; both as in ProMP (https://arxiv.org/abs/1810.06784).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from raceway.agents import Agent
from raceway.agents.builders import actor
from raceway.algorithms.config import AlgorithmConfig
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.envs import Slots, has_tasks
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter
from raceway.learner.adaptation import adapt_parameters
from raceway.ops import FitBaseline, InnerAdapt, MetaUpdate, TrainStats
from raceway.rl import Batch, Episodes
from raceway.settings.field_types import PositiveFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    """Settings of MAML."""

    clip_actions: ClassVar[bool] = True
    needs_tasks: ClassVar[bool] = True
    env: Any = "point"
    """Environment with tasks: point, cheetah-direction, or any with set_task(task) and sample_tasks(num, seed)."""
    num_shards: PositiveInt | None = 20
    """Number of tasks per iteration, one per shard."""
    num_envs: PositiveInt = 200
    """Episodes per round, over all tasks."""
    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the meta-update."""
    inner_lr: PositiveFloat = 0.1
    """Learning rate α of the inner gradient steps."""
    inner_steps: PositiveInt = 1
    """Inner gradient steps, each after a round of episodes."""
    first_order: bool = False
    """First-order approximation: ignore second derivatives in the meta-gradient."""
    num_epochs: PositiveInt = 5
    """Meta-updates per iteration, on the same episodes."""
    clip: PositiveFloat = 0.2
    """Clipping range ε of the probability ratio in the meta-update."""

    def for_env(self, slots: Slots) -> Self:
        """Refuse environments without tasks."""
        if not has_tasks(slots):
            advice = "Use --env point, or add the methods sample_tasks(num, seed) and set_task(task)."
            raise ConfigError(f"maml needs an environment with tasks, and {self.env} has none. {advice}")
        return super().for_env(slots)

    @property
    def rollout_size(self) -> dict[str, Any]:
        """Whole episodes; a task lasts for one rollout before each inner step and one after the last."""
        return {"num_episodes": self.num_envs, "items_per_task": self.inner_steps + 1}


def inner_loss(agent: Agent, batch: Batch) -> Tensor:
    """Return -ρ A, averaged over the batch, [N]. ρ = π/π_old is the probability ratio to the behaviour policy."""
    return -((agent.actor.log_prob(batch) - batch["log_prob"]).exp() * batch["advantage"]).mean()


def loss(agent: Agent, batch: Batch, cfg: Config) -> Tensor:
    """Return -min(ρ A, clip(ρ, 1 - ε, 1 + ε) A), averaged over the batch, [N], with ρ as in `inner_loss`."""
    ratio, advantage = (agent.actor.log_prob(batch) - batch["log_prob"]).exp(), batch["advantage"]
    return -torch.min(ratio * advantage, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * advantage).mean()


@algorithm("maml", Config, agent=actor, actions=("box",), recurrent=True)
def maml(rollouts: ParIter[Episodes], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    adapt = partial(adapt_parameters, ctx.learner.agent, inner_loss, cfg.inner_lr)
    inner = InnerAdapt(ctx.weights(), adapt, cfg.inner_steps)
    meta_loss = partial(loss, cfg=cfg)
    return (
        rollouts.on_failure("restart", on_restart=inner.send_to, **ctx.failure_policy)
        .for_each(FitBaseline(cfg.gamma))
        .gather_sync()
        .combine(inner)
        .for_each(MetaUpdate(ctx.learner, adapt, meta_loss, num_epochs=cfg.num_epochs, first_order=cfg.first_order))
        .for_each(ctx.weights())
    )
