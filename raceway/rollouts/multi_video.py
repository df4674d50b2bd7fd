"""Videos of several agents in an environment of PettingZoo's API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import ConfigError, RacewayError
from raceway.rl.seeding import Purpose, derive_seed, episode_seed
from raceway.rollouts.multi_evaluation import JointEpisode
from raceway.rollouts.video import VideoRecorder

_SHARD = 1  # its episodes differ from those of an evaluation, which uses shard 0


@dataclass
class MultiVideoRecorder(VideoRecorder):
    """Records an environment with several agents as a video; see `VideoRecorder`. `returns` are the totals.

    The policy to record is that of every agent by name, such as `TrainedPolicies`.
    """

    settings: MultiAgentSettings  # type: ignore[assignment]

    def _make_env(self) -> Any:
        settings = self.settings
        name = settings.name
        try:
            env = replace(settings, kwargs={**settings.kwargs, "render_mode": "rgb_array"}).make()
            try:
                modes = list(getattr(env, "metadata", {}).get("render_modes") or [])
                if "rgb_array" not in modes:
                    raise ConfigError(f"{name} cannot be recorded: rgb_array is not one of its render modes, {modes}")
                env.reset(seed=0)
                self._render(env)
            except BaseException:
                env.close()
                raise
        except RacewayError:
            raise
        except Exception as error:  # rendering libraries may raise anything
            raise ConfigError(f"{name} cannot render here: {type(error).__name__}: {error}") from error
        return env

    def _frames(self, policy: Any, num: int, seed: int, deterministic: bool) -> Iterator[np.ndarray]:
        seed = derive_seed(seed, Purpose.EVALUATION)
        for number in range(num):
            action_seed = derive_seed(seed, Purpose.ACTIONS, _SHARD, number)
            episode = JointEpisode(self.env, policy, deterministic=deterministic, action_seed=action_seed)
            for _ in episode.steps(episode_seed(seed, _SHARD, 0, number)):
                yield self._render(self.env)
            self.returns.append(sum(episode.returns.values()))
