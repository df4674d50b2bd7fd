"""Recurrent networks: LSTM and GRU, over single steps in rollouts and over whole sequences in training.

A sequence batch takes one call of the recurrent layer: segments of different lengths, each within one episode, are
padded to the longest. A loop over time in Python would take several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents.networks import ActionHead, Encoder, State
from raceway.autograd.layers import run_layers
from raceway.rl import tree_map

CELLS: dict[str, type[nn.LSTMCell] | type[nn.GRUCell]] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


class RecurrentNetwork(nn.Module):
    """An encoder, feed-forward layers, one recurrent layer, and a head for the actions.

    Args:
        observation_space: the space of the observations that a network sees.
        action_space: the action space.
        hidden: the widths of the layers; the last is the recurrent one's, 128 if there are none.
        kind: `lstm` or `gru`.
        encoder: the encoder of the observations.
        make_head: makes the head from the width of the recurrent layer, if it is another than that of the actions.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        hidden: Sequence[int] = (),
        kind: str = "lstm",
        encoder: Encoder | None = None,
        make_head: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        *before, width = hidden or (128,)
        self.encoder = encoder or Encoder(observation_space)
        self.layers = nn.ModuleList()
        size = self.encoder.size
        for number in before:
            self.layers += [nn.Linear(size, number), nn.Tanh()]
            size = number
        self.cell = CELLS[kind](size, width)
        self.head = ActionHead(width, action_space) if make_head is None else make_head(width)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the parts of its state."""
        return ("hidden", "cell") if isinstance(self.cell, nn.LSTMCell) else ("hidden",)

    def initial_state(self, num: int) -> State:
        """Return the state at the start of `num` episodes: zeros."""
        device = self.cell.weight_hh.device
        return {name: torch.zeros(num, self.cell.hidden_size, device=device) for name in self.state_names}

    def forward(self, obs: Any, state: State) -> tuple[Tensor, State]:
        """Return the outputs for one step of every row, and the next state."""
        x = self._cell_input(obs)
        if isinstance(self.cell, nn.LSTMCell):
            hidden, cell = self.cell(x, (state["hidden"], state["cell"]))
            return self.head(hidden), {"hidden": hidden, "cell": cell}
        hidden = self.cell(x, state["hidden"])
        return self.head(hidden), {"hidden": hidden}

    def _cell_input(self, obs: Any) -> Tensor:
        encoded = self.encoder(obs)
        return run_layers(list(self.layers), encoded) if self.layers else encoded

    def features(self, obs: Any, state: State) -> Tensor:
        """Return the outputs of the recurrent layer over sequences, [T, B, width], in one call.

        Args:
            obs: the observations, [T, B, ...].
            state: the state before the first step, [B, ...].
        """
        x = self._cell_input(obs)
        options = (True, 1, 0.0, self.training, False, False)  # biases, one layer, no dropout, one direction
        if isinstance(self.cell, nn.LSTMCell):
            return torch.lstm(x, (state["hidden"][None], state["cell"][None]), self._cell_weights, *options)[0]
        return torch.gru(x, state["hidden"][None], self._cell_weights, *options)[0]

    def state_after(self, rows: Any, lengths: Tensor, state: State) -> State:
        """Return the state after each of some concatenated segments, in one call; arguments as of `run_segments`."""
        order = torch.argsort(lengths, descending=True, stable=True)  # a packed sequence has the longest first
        step, segment = rows_of_segments(lengths)
        rank = torch.empty_like(order).index_put((order,), torch.arange(len(order)))
        packed = torch.argsort(step * len(lengths) + rank[segment])
        x = self._cell_input(tree_map(lambda part: part[packed], rows))
        sizes, options = torch.bincount(step), (True, 1, 0.0, self.training, False)
        before = [state[name][order][None] for name in self.state_names]
        if isinstance(self.cell, nn.LSTMCell):
            _, *after = torch.lstm(x, sizes, before, self._cell_weights, *options)
        else:
            _, *after = torch.gru(x, sizes, before[0], self._cell_weights, *options)
        return {name: part[0][rank] for name, part in zip(self.state_names, after, strict=True)}

    @property
    def _cell_weights(self) -> list[Tensor]:
        return [self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh]


def pad_segments(rows: Any, lengths: Tensor) -> tuple[Any, Tensor, Tensor]:
    """Return concatenated segments as padded sequences, [T, S, ...], and the step and segment of every row, [N].

    Padding repeats the first row: zeros are not a valid observation in every space.
    """
    step, segment = rows_of_segments(lengths)
    longest, num = int(lengths.max()), len(lengths)
    padded = tree_map(lambda x: x[0].expand(longest, num, *x.shape[1:]).index_put((step, segment), x), rows)
    return padded, step, segment


def rows_of_segments(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the step within its segment, and the segment, of every row of concatenated segments, both [N]."""
    segment = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return torch.arange(len(segment)) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths), segment


def run_segments(network: Any, rows: Any, lengths: Tensor, state: State) -> Tensor:
    """Return the features of a recurrent network for every row of concatenated segments, [N, ...].

    A built-in network takes one call. A user's network is called step by step, and its outputs are returned.

    Args:
        network: the recurrent network.
        rows: the observations of the segments, one after the other, [N, ...].
        lengths: the number of rows of every segment, [S].
        state: the state at the start of every segment, [S, ...].
    """
    padded, step, segment = pad_segments(rows, lengths)
    if isinstance(network, RecurrentNetwork):
        return network.features(padded, state)[step, segment]
    outputs = []
    for t in range(int(lengths.max())):
        output, state = network(tree_map(lambda x, t=t: x[t], padded), state)
        outputs.append(output)
    return torch.stack(outputs)[step, segment]


def state_after_segments(network: Any, rows: Any, lengths: Tensor, state: State) -> State:
    """Return the state of a recurrent network after every segment, [S, ...]; arguments as of `run_segments`."""
    if isinstance(network, RecurrentNetwork):
        return network.state_after(rows, lengths, state)
    padded, _, _ = pad_segments(rows, lengths)
    after = state
    for t in range(int(lengths.max())):
        _, state = network(tree_map(lambda x, t=t: x[t], padded), state)
        last = torch.nonzero(lengths == t + 1).flatten()
        after = {name: part.index_copy(0, last, state[name][last]) for name, part in after.items()}
    return after
