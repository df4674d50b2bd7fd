"""R2D2: recurrent replay distributed DQN.

Paper: Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX

    store:    rollouts -> sequences, with the recurrent state before them      on every worker
                 ~> prioritised replay                                         on its shards
                 -> weights                                                    to the worker that sent them
    replay:   batches of sequences sampled from the shards
                 ~> burn-in, then one Adam step                                on the learner
                 -> new priorities                                             to the shard
                 -> target network
    both at the same time, with a rate limit between them

Differs from the paper: new sequences get the maximum priority so far instead of one computed by the worker; adjacent
sequences share exactly the burn-in, which is half of them with the paper's numbers, 80 and 40; n-step returns become
shorter towards the end of a sequence; the dueling head has no hidden layer; fewer environments and steps per update.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from raceway.agents import EpsilonGreedy, QAgent, Spaces
from raceway.agents.builders import dueling_recurrent_network
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.flow import Iter, ParIter, union_async
from raceway.ops import (
    CountSteps,
    LossOutput,
    MergeStats,
    ReplaySettings,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    UpdatePriorities,
    replay_rows,
)
from raceway.rl import (
    Batch,
    Fragment,
    double_q_target,
    inverse_value_rescaling,
    masked_mean,
    sequence_priorities,
    value_rescaling,
)
from raceway.settings.field_types import Count, Discount, Fraction, Network, PositiveFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of R2D2."""

    prioritised: ClassVar[bool] = True
    last_action_and_reward: bool = True
    """Add the last action and its reward to every observation, as last_action and last_reward: a Dict observation."""
    network: Network = "lstm"
    """Network: lstm, gru, or a recurrent one as module:function, called with (observation_space, action_space)."""
    hidden: Widths | None = (512,)
    """Widths of the hidden layers; the last is that of the recurrent one."""
    num_envs: PositiveInt = 32
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 40
    """Steps per environment in one rollout fragment."""
    sequence_steps: PositiveInt = 80
    """Steps of a sequence in replay."""
    burn_in: Count = 40
    """Steps at the start of a sequence that only update the recurrent state, and overlap with the sequence before."""
    batch_size: PositiveInt = 2560
    """Trained steps per gradient step: those of a sequence are sequence_steps - burn_in."""
    buffer_size: PositiveInt = 1_000_000
    """Capacity of the replay buffer, in trained steps."""
    learning_starts: PositiveInt = 10_000
    """Environment steps before the first gradient step."""
    steps_per_update: PositiveFloat = 800.0
    """Environment steps per gradient step."""
    adam_epsilon: PositiveFloat = 1e-3
    """Adam's epsilon."""
    max_grad_norm: PositiveFloat | None = 40.0
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    gamma: Discount = 0.997
    """Discount factor γ."""
    n_step: PositiveInt = 5
    """Steps n of the n-step return."""
    replay_shards: PositiveInt = 2
    """Number of actors that the replay buffer is sharded over."""
    alpha: Fraction = 0.9
    """Prioritisation exponent α."""
    beta: Fraction = 0.6
    """Importance-sampling exponent β."""
    eta: Fraction = 0.9
    """Weight η of the largest TD error in the priority of a sequence; the rest is that of the mean."""
    epsilon: Fraction = 0.4
    """Base ε of the ε-greedy policies: the environments use εⁱ, with i from 1 to 8."""
    weights_every: PositiveInt = 1
    """Fragments that a worker collects before it gets new weights."""

    @property
    def replay_settings(self) -> ReplaySettings:
        """Settings of the prioritised replay buffer."""
        settings = {"num_shards": self.replay_shards, "alpha": self.alpha, "beta": self.beta}
        min_size = max(1, self.learning_starts // (2 * self.replay_shards))
        return dataclasses.replace(super().replay_settings, **settings, min_size=min_size)  # type: ignore[arg-type]


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer with another ε for each environment, over all shards."""
    return EpsilonGreedy((cfg.epsilon ** torch.linspace(1, 8, cfg.num_envs)).numpy())


def loss(agent: QAgent, batch: Batch, eta: float = 0.9) -> LossOutput:
    """Return the mean of w ½(Q(s, a) - h(Σ γᵏ rₖ + γⁿ h⁻¹(Q'(s', argmax Q(s', ·)))))²; the batch is [N, L].

    Both networks start from the stored state and are unrolled over the same burn-in; the mean leaves it out, and
    padding. w is the importance-sampling weight of the sequence, and h rescales values (see `value_rescaling`).
    """
    all_q_values, next_q_online, next_q_target = agent.sequence_q_values(batch)
    next_values = inverse_value_rescaling(next_q_target)
    td_target = value_rescaling(double_q_target(batch["reward"], batch["discount"], next_q_online, next_values))
    q_values = all_q_values.gather(-1, agent.action_index(batch)[..., None]).squeeze(-1)
    errors = q_values - td_target
    losses = 0.5 * errors**2 * batch["weight"][:, None]
    priorities = sequence_priorities(errors.detach(), batch["mask"], eta)
    return LossOutput(masked_mean(losses, batch), {"q_values": masked_mean(q_values, batch)}, priorities=priorities)


@algorithm("r2d2", Config, agent=dueling_recurrent_network, explorer=explorer, actions=("discrete",), recurrent=True)
def r2d2(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    lengths = {"sequence_steps": cfg.sequence_steps, "burn_in": cfg.burn_in, "fragment_steps": cfg.fragment_steps}
    rows = replay_rows(ctx.learner.agent, cfg.gamma, cfg.n_step, **lengths)
    shards = ctx.replay(cfg.replay_settings, rows.row_steps)
    store = (
        rollouts.for_each(rows)
        .gather_async()
        .for_each(StoreToReplay(shards))
        .for_each(ctx.weights(to="senders", every=cfg.weights_every))
        .for_each(CountSteps(ctx.learner))
    )
    train = TrainOneStep(ctx.learner, partial(loss, eta=cfg.eta), targets=Target(every=cfg.target_every))
    replay = (
        ctx.samples(shards).for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue)).for_each(UpdatePriorities())
    )
    return union_async(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
