"""The learner: TorchRL's Q-value actor and DQN loss, and how frames reach them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, ValueEstimators

from collector import Weights
from raceway.torchrl import TrainLossModule
from raceway.torchrl.appending import Columns


def make_actor(obs_dim: int, num_actions: int, hidden: int) -> QValueActor:
    """Make the network whose outputs are the values of actions, as TorchRL's losses take it."""
    network = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ReLU(), nn.Linear(hidden, num_actions))
    return QValueActor(network, in_keys=["observation"], spec=Categorical(num_actions))


def make_loss(actor: QValueActor, gamma: float) -> DQNLoss:
    """Make the loss: the squared distance to r + γ maxₐ Q⁻(s′, a), where Q⁻ is a target network that follows slowly."""
    loss = DQNLoss(actor, delay_value=True, loss_function="l2")
    loss.make_value_estimator(ValueEstimators.TD0, gamma=gamma)
    return loss


class Learner:
    """The actor and what trains it.

    Args:
        obs_dim: the length of observations.
        num_actions: actions to choose from.
        hidden: the width of the network's hidden layer.
        gamma: the discount γ.
        lr: Adam's step size.
        tau: how far the target network follows in a step, τ.
        norm: the largest norm of a gradient.
        seed: of the weights that the network begins with.
    """

    def __init__(
        self,
        obs_dim: int,
        num_actions: int,
        *,
        hidden: int,
        gamma: float,
        lr: float,
        tau: float,
        norm: float,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        self.obs_dim = obs_dim
        self.actor = make_actor(obs_dim, num_actions, hidden)
        self.train = TrainLossModule(make_loss(self.actor, gamma), lr=lr, tau=tau, max_grad_norm=norm)

    def warm_up(self, batch_size: int) -> None:
        """Take a step and take it back: the first takes many times as long as those that follow."""
        state = self.train.state()
        zeros = np.zeros((batch_size, 1), np.float32)
        seen, ended = np.zeros((batch_size, self.obs_dim), np.float32), np.zeros((batch_size, 1), bool)
        after = {"observation": seen, "reward": zeros, "terminated": ended, "done": ended}
        example = {("observation",): seen, ("action",): np.zeros(batch_size, np.int64)}
        self.update([example | {("next", name): column for name, column in after.items()}])
        self.train.restore(state)

    def weights(self) -> Weights:
        """Return the weights and biases of the network, as collectors take them."""
        layers = [layer for layer in self.actor.modules() if isinstance(layer, nn.Linear)]
        return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in layers]

    def update(self, parts: Sequence[Columns]) -> float:
        """Take one step on what the replay shards gave, and return the loss."""
        return self.train(joined(parts)).metrics["train/loss"]


def joined(parts: Sequence[Columns]) -> TensorDict:
    """Make one TensorDict of frames that came in several parts."""
    columns = {path: torch.from_numpy(np.concatenate([part[path] for part in parts])) for path in parts[0]}
    return TensorDict(columns, [len(columns["action",])])
