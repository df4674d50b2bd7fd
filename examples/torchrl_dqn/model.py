"""The learner: TorchRL's Q-value actor and DQN loss, trained on sampled frames."""

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
from raceway.torchrl.appending import FlatBatch


def make_actor(obs_dim: int, num_actions: int, hidden: int) -> QValueActor:
    """Return the Q-network in the form that TorchRL's losses expect."""
    network = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ReLU(), nn.Linear(hidden, num_actions))
    return QValueActor(network, in_keys=["observation"], spec=Categorical(num_actions))


def make_loss(actor: QValueActor, gamma: float) -> DQNLoss:
    """Return the loss, the squared TD error (r + γ maxₐ Q⁻(s′, a) − Q(s, a))², where Q⁻ is the target network."""
    loss = DQNLoss(actor, delay_value=True, loss_function="l2")
    loss.make_value_estimator(ValueEstimators.TD0, gamma=gamma)
    return loss


class Learner:
    """The Q-network, its target network and its optimiser.

    Args:
        obs_dim: length of an observation.
        num_actions: number of discrete actions.
        hidden: width of the network's hidden layer.
        gamma: discount factor γ.
        lr: Adam's learning rate.
        tau: soft-update coefficient τ of the target network.
        norm: norm that gradients are clipped to.
        seed: seed of the initial weights.
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
        """Take a gradient step and undo it, because the first step takes many times as long as later ones."""
        state = self.train.state()
        reward = np.zeros((batch_size, 1), np.float32)
        obs, ended = np.zeros((batch_size, self.obs_dim), np.float32), np.zeros((batch_size, 1), bool)
        following = {"observation": obs, "reward": reward, "terminated": ended, "done": ended}
        batch = {("observation",): obs, ("action",): np.zeros(batch_size, np.int64)}
        self.update([batch | {("next", name): column for name, column in following.items()}])
        self.train.restore(state)

    def weights(self) -> Weights:
        """Return the weights and biases of the network, in the form that collectors use."""
        layers = [layer for layer in self.actor.modules() if isinstance(layer, nn.Linear)]
        return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in layers]

    def update(self, parts: Sequence[FlatBatch]) -> float:
        """Take one gradient step on a batch that was sampled in several parts, and return the loss."""
        return self.train(concat_parts(parts)).metrics["train/loss"]


def concat_parts(parts: Sequence[FlatBatch]) -> TensorDict:
    """Concatenate the parts of a batch into one TensorDict."""
    columns = {path: torch.from_numpy(np.concatenate([part[path] for part in parts])) for path in parts[0]}
    return TensorDict(columns, [len(columns["action",])])
