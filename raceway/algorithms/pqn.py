"""PQN: Q-learning from parallel environments, without replay and without a target network.

Paper: Gallici et al. 2024, https://arxiv.org/abs/2407.04811

    rollouts -> Q(λ) returns                        on every worker
       -> one batch
       -> epochs of RAdam steps on minibatches      on the learner
       -> weights                                   to all workers

The Q-network normalises the inputs of its activations (LayerNorm), without which it diverges.

Differs from the paper: convolutions are not normalised.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from raceway.agents import EpsilonGreedy, QAgent, Spaces
from raceway.agents.builders import q_network
from raceway.algorithms.config import AlgorithmConfig
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.flow import Iter, ParIter
from raceway.ops import AddQLambdaReturns, ConcatBatches, Explore, Objective, TrainOneStep, TrainStats
from raceway.rl import Batch, Fragment, LinearSchedule
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    """Settings of PQN."""

    num_envs: PositiveInt = 32
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 64
    """Steps per environment in one rollout fragment."""
    hidden: Widths | None = (256, 256)
    """Widths of the hidden layers, each of which is normalised."""
    lr: PositiveFloat = 2.5e-4
    """Learning rate."""
    lr_end: float | None = 0.0
    """Final learning rate, after linear decay over total_timesteps. Without either, the learning rate is constant."""
    max_grad_norm: PositiveFloat | None = 10.0
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    adam_epsilon: PositiveFloat = 1e-8
    """RAdam's epsilon."""
    num_epochs: PositiveInt = 4
    """Epochs over each batch, whose targets are computed once."""
    num_minibatches: PositiveInt = 16
    """Minibatches per epoch, each for one gradient step."""
    lam: Fraction = 0.65
    """Weight λ of later steps in the Q(λ) returns."""
    reward_scale: PositiveFloat = 1.0
    """Factor of rewards in the targets."""
    epsilon: Fraction = 0.05
    """Final ε of the ε-greedy policy."""
    epsilon_steps: PositiveInt = 100_000
    """Environment steps over which ε decays linearly from 1."""


def agent(spaces: Spaces, cfg: Config) -> QAgent:
    """Return a Q-network with layer normalisation."""
    return q_network(spaces, cfg, layer_norm=True)


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer, whose ε decays from 1."""
    return EpsilonGreedy(1.0)


def loss(agent: QAgent, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of (Q(s, a) - G)², where G is the Q(λ) return; the batch is [N]."""
    q_values = agent.q_values(batch).gather(-1, agent.action_index(batch)[:, None]).squeeze(-1)
    return (q_values - batch["q_target"]).square().mean(), {"q_values": q_values.mean()}


@algorithm("pqn", Config, agent=agent, explorer=explorer, actions=("discrete",))
def pqn(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    objective = Objective(loss=loss, optimiser="radam", options={"epsilon": cfg.adam_epsilon})
    train = TrainOneStep(ctx.learner, objective, num_epochs=cfg.num_epochs, num_minibatches=cfg.num_minibatches)
    return (
        rollouts.for_each(AddQLambdaReturns(cfg.gamma, cfg.lam, cfg.reward_scale))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(Explore(ctx.exploration, epsilon=LinearSchedule(1.0, cfg.epsilon, cfg.epsilon_steps)))
        .for_each(train)
        .for_each(ctx.weights())
    )
