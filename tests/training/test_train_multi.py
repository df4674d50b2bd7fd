"""Two trainers behind one split, each at its own pace, in one flow."""

import copy
from typing import Any

import pytest

from raceway.errors import ConfigError
from raceway.training import train_multi as train_multi_module
from raceway.training.train_multi import MultiTraining, train_multi

SPREAD: dict[str, Any] = {
    "env": "mpe2.simple_spread_v3",
    "policies": {"agent_0": "pair", "agent_1": "pair", "agent_2": "single"},
    "trainers": {
        "pair": ("ppo", {"batch_steps": 160, "num_epochs": 2, "num_minibatches": 2, "metrics_interval": 0}),
        "single": (
            "dqn",
            {"learning_starts": 20, "batch_size": 16, "buffer_size": 1000, "target_every": 5, "metrics_interval": 0},
        ),
    },
    "env_kwargs": {"max_cycles": 10},
    "num_envs": 4,
    "fragment_steps": 5,
}


def test_each_policy_has_its_own_batch_size_and_metrics() -> None:
    result = train_multi(**SPREAD, total_timesteps=640)
    pair, single = result.metrics["pair"], result.metrics["single"]
    # A round has 5 steps of 4 environments: 40 steps of the two agents, 20 of the other.
    assert [row["time/total_timesteps"] for row in pair] == [160, 320, 480, 640]
    assert [row["time/total_timesteps"] for row in single][:3] == [20, 40, 60]
    assert "train/clip_fraction" in pair[0]
    assert "train/q_values" in single[-1]
    assert len(result.returns["pair"]) == result.episodes["pair"] == 64
    assert abs(len(result.returns["single"]) - 32) <= 4


def test_a_result_holds_a_bounded_number_of_rows_and_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_multi_module, "MAX_ROWS", 2)
    monkeypatch.setattr(train_multi_module, "MAX_RETURNS", 20)
    trainers = copy.deepcopy(SPREAD["trainers"])
    trainers["single"][1]["metrics_interval"] = 1e6
    result = train_multi(**{**SPREAD, "trainers": trainers}, total_timesteps=640)
    assert [row["time/total_timesteps"] for row in result.metrics["pair"]] == [480, 640]
    assert (len(result.returns["pair"]), result.episodes["pair"]) == (20, 64)
    first, rest = result.metrics["single"]
    assert first["time/row_iterations"] == 1
    assert rest["time/row_iterations"] == rest["time/iterations"] - 1 > 10
    assert first["rollout/row_episodes"] + rest["rollout/row_episodes"] == result.episodes["single"]


@pytest.mark.parametrize("engine", ["process", "ray"])
def test_both_policies_train_on_every_engine(engine: str) -> None:
    before = {name: policy.sha256() for name, policy in MultiTraining(**SPREAD).policies.items()}
    result = train_multi(**SPREAD, num_shards=2, total_timesteps=960, engine=engine, num_workers=2)
    assert [row["time/total_timesteps"] for row in result.metrics["pair"]] == [160, 320, 480, 640, 800, 960]
    assert 24 - 12 <= len(result.metrics["single"]) <= 24  # it may lag by as many rounds as the split buffers
    assert all(policy.sha256() != before[name] for name, policy in result.policies.items())


def test_the_first_batch_is_the_same_on_another_engine() -> None:
    rows = [
        train_multi(**SPREAD, num_shards=2, total_timesteps=160, engine=engine, num_workers=number).metrics["pair"]
        for engine, number in (("inline", 1), ("process", 2))
    ]
    assert rows[0][0]["returns"] == rows[1][0]["returns"]


def test_the_plan_shows_the_split_and_both_plans() -> None:
    with MultiTraining(**SPREAD).open_flow() as (flow, _):
        plan = flow.explain()
    assert "split(pair, single)" in plan
    assert "for_each(AddAdvantages)" in plan
    assert "for_each(StoreToReplay)" in plan


def test_every_policy_needs_a_trainer_for_its_actions() -> None:
    alone = {"pair": SPREAD["trainers"]["pair"]}
    with pytest.raises(ConfigError, match="every policy needs one"):
        MultiTraining(**{**SPREAD, "trainers": alone})
    moving = {**SPREAD, "env_kwargs": {"max_cycles": 10, "continuous_actions": True}}
    with pytest.raises(ConfigError, match="dqn is for discrete actions, and policy 'single'"):
        MultiTraining(**moving)
    with pytest.raises(ConfigError, match="never end"):
        train_multi(**SPREAD)
