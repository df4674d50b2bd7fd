"""Sizes of the samples from replay, as configs choose them."""

import pytest

from raceway.algorithms import apex, dqn, rainbow, sac
from raceway.errors import ConfigError
from raceway.ops import ReplaySettings


@pytest.mark.parametrize(
    ("settings", "updates_per_round", "updates_per_sample"),
    [
        ({"num_envs": 4, "fragment_steps": 8, "steps_per_update": 4.0, "batch_size": 64}, 8, 8),
        ({"num_envs": 8, "fragment_steps": 32, "steps_per_update": 2.0, "batch_size": 64}, 128, 16),  # 1024 rows
        (
            {"num_envs": 8, "fragment_steps": 3, "steps_per_update": 2.0, "batch_size": 100},
            12,
            6,
        ),  # 10 do not divide it
        ({"num_envs": 8, "fragment_steps": 8, "steps_per_update": 2.0, "batch_size": 2000}, 32, 1),
        ({"num_envs": 1, "fragment_steps": 1, "steps_per_update": 4.0, "batch_size": 64}, 1, 1),
        ({"num_envs": 8, "fragment_steps": 8, "steps_per_update": 2.0, "stacked_frames": True}, 32, 1),
    ],
)
def test_gradient_steps_of_a_round_share_samples(
    settings: dict[str, float], updates_per_round: int, updates_per_sample: int
) -> None:
    cfg = dqn.Config(**settings)  # type: ignore[arg-type]
    assert (cfg.updates_per_round, cfg.updates_per_sample) == (updates_per_round, updates_per_sample)
    assert cfg.samples_per_round * cfg.updates_per_sample == updates_per_round
    assert cfg.replay_settings.batches_per_sample == updates_per_sample
    assert cfg.replay_settings.batch_size == cfg.batch_size


def test_an_update_per_step_has_a_sample_of_its_own() -> None:
    assert sac.Config().updates_per_sample == 1


@pytest.mark.parametrize("module", [rainbow, apex])
def test_prioritised_replay_samples_one_batch_at_a_time(module: object) -> None:
    cfg = module.Config(num_envs=8, fragment_steps=8, steps_per_update=2.0)  # type: ignore[attr-defined]
    assert (cfg.updates_per_sample, cfg.replay_settings.batches_per_sample) == (1, 1)
    with pytest.raises(ConfigError, match="prioritised replay samples one batch at a time, not 2"):
        ReplaySettings(capacity=8, alpha=0.6, batches_per_sample=2)
