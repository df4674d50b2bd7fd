"""Settings of the user that have no effect with the chosen network are refused; those of presets are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

from raceway.algorithms import find_algorithm
from raceway.errors import ConfigError
from raceway.runs.settings_file import merge_settings, read_settings_file
from raceway.training.train import Training, train


class TwoParts(gym.Env[Any, Any]):
    """Observations of a Dict: a vector and a number of its own."""

    observation_space = spaces.Dict(vector=spaces.Box(-9, 9, (2,), np.float32), kind=spaces.Discrete(3))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 5
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self._observe(), 1.0, self.left == 0, False, {}

    def _observe(self) -> dict[str, Any]:
        vector = self.np_random.normal(4, 1, 2).astype(np.float32)
        return {"vector": vector, "kind": int(self.np_random.integers(3))}


def actor_alone(observation_space: spaces.Space, action_space: Any) -> nn.Module:
    return nn.Linear(observation_space.shape[0], getattr(action_space, "n", 1))  # type: ignore[index]


def with_critic(observation_space: spaces.Space, action_space: Any) -> tuple[nn.Module, nn.Module]:
    return actor_alone(observation_space, action_space), nn.Linear(observation_space.shape[0], 1)  # type: ignore[index]


def training(algorithm: str, path: Path | None = None, **settings: Any) -> Training:
    spec = find_algorithm(algorithm)
    merged = merge_settings(spec, None if path is None else read_settings_file(path), settings)
    return Training(spec, spec.settings(**merged.values), setting_sources=spec.sources(*merged))


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("ppo", {"network": with_critic, "hidden": (7,)}, "hidden 7 has no effect .*: the networks are your own"),
        ("ppo", {"network": with_critic, "activation": "relu"}, "activation relu has no effect"),
        ("ppo", {"network": with_critic, "normalise_obs": True}, "normalise_obs True has no effect"),
        ("ppo", {"network": actor_alone, "normalise_obs": True}, "gets observations as they are"),
        ("a2c", {"network": actor_alone, "shared_layers": True}, "shares nothing with the critic"),
        ("ppo", {"network": "lstm", "activation": "tanh"}, "lstm has tanh layers, which the critic shares"),
        ("ppo", {"network": "gru", "shared_layers": True}, "Leave shared_layers out"),
        ("ppo", {"env": "FrozenLake-v1", "normalise_obs": True}, "have no numbers to normalise"),
        ("dqn", {"network": actor_alone, "hidden": (7,)}, "Leave hidden out"),
        ("dqn", {"burn_in": 4}, "burn_in 4 has no effect with this network: it has no memory"),
    ],
)
def test_settings_without_effect_are_refused(algorithm: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        training(algorithm, **settings)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"network": actor_alone, "hidden": (7,), "activation": "relu"}),  # of the built-in critic
        ("ppo", {"network": with_critic, "normalise_obs": False, "shared_layers": False}),
        ("ppo", {"network": with_critic, "env": "Pendulum-v1"}),  # a preset that normalises
        ("impala", {"network": with_critic}),  # a preset that shares layers
        ("sac", {"network": actor_alone, "hidden": (7,), "env": "Pendulum-v1"}),
    ],
)
def test_settings_with_an_effect_and_presets_are_accepted(algorithm: str, settings: dict[str, Any]) -> None:
    cfg = training(algorithm, **settings).cfg
    assert {name: getattr(cfg, name) for name in settings} == settings


def test_a_file_may_repeat_what_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('env = "cartpole"\nhidden = [64, 64]\n')
    assert training("a2c", path, network=with_critic).setting_sources["hidden"] == "file"
    path.write_text('env = "cartpole"\nhidden = [64, 7]\n')
    with pytest.raises(ConfigError, match="hidden 64,7 has no effect"):
        training("a2c", path, network=with_critic)


def test_policies_of_several_agents_are_checked_too() -> None:
    def env() -> Any:
        from mpe2 import simple_v3

        return simple_v3.parallel_env()

    with pytest.raises(ConfigError, match="hidden 7 has no effect"):
        train(
            "ppo",
            env=env,
            policies={"only": {"agents": ["agent_0"], "network": with_critic, "hidden": (7,)}},
            progress=False,
        )


def test_observations_of_a_dict_are_normalised_in_training(tmp_path: Path) -> None:
    result = train(
        "ppo", env=TwoParts, normalise_obs=True, engine="inline", num_envs=2, num_shards=1, fragment_steps=16,
        progress=False, num_epochs=1, num_minibatches=1, iterations=2, run_dir=tmp_path / "run",
    )  # fmt: skip
    counts = {name: array for name, array in result.policy.weights().items() if name.endswith("normaliser.count")}
    assert counts
    assert {float(count) for count in counts.values()} == {64.0}
    assert np.any(result.policy.weights()[next(iter(counts)).replace("count", "mean")])
