"""Recording whole episodes of a policy, step by step, as an evaluation runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from raceway.rl import Batch, row_of, tree_map
from raceway.rollouts.evaluation import Evaluator


class EpisodeRecorder(Evaluator):
    """An evaluator that passes on every episode when it ends.

    Actions are recorded as environments get them, so clipped to their bounds if the policy's are, and rewards as the
    policy learns from them. In Atari games an episode is what the environment says: a life, if it ends with one.

    Args:
        on_episode: called with a batch of one episode: `obs`, `action`, `reward`, `terminated` and `truncated` of its
            steps, [T, ...], its `final_obs`, [1, ...], and its `length`, [1].
        settings: the arguments of `Evaluator`.
    """

    def __init__(self, *args: Any, on_episode: Callable[[Batch], None], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._on_episode = on_episode
        self._open: list[list[Batch]] = [[] for _ in range(self.num)]  # the steps of the open episodes, by slot
        self._obs_before: Any = None

    def _step(self, active: list[int]) -> list[int]:
        self._obs_before = tree_map(np.copy, self.obs)
        return super()._step(active)

    def _on_steps(self, slots: list[int]) -> None:
        columns = {
            "obs": self._obs_before,
            "action": self._env_actions().astype(self.action.dtype, copy=False),  # bounds may be of 64 bits
            "reward": self.reward.copy(),
            "terminated": self.ended[0].copy(),
            "truncated": self.ended[1].copy(),
        }
        for slot in slots:
            self._open[slot].append(row_of(columns, slot))  # views of arrays that nothing else writes to
            if self.ended[:, slot].any():
                steps, self._open[slot] = self._open[slot], []
                episode: Batch = tree_map(lambda *rows: np.stack(rows), *steps)
                final_obs = tree_map(lambda part: part[None].copy(), row_of(self.obs, slot))
                self._on_episode({**episode, "final_obs": final_obs, "length": np.array([len(steps)])})
