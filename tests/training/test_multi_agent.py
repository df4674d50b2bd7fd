"""Runs with several agents have what runs with one have: files, metrics, exact resume, evaluation, callbacks."""

import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import nn

from raceway.algorithms import algorithm_names, find_algorithm
from raceway.checkpoints.store import Checkpoints
from raceway.errors import ConfigError, ShardFailed
from raceway.flow import Iter, injected
from raceway.loaded_policy import load
from raceway.ops import CountSteps, TrainStats
from raceway.rl import joint
from raceway.training.train import make_training, resume, train
from raceway.ui.callback import Callback
from tests.catalogue.small_settings import UNUSED, has_rollouts
from tests.rollouts.test_multi_collector import ComeAndGo
from tests.training.multi_agent_runs import DQN, SHORT_SPREAD, SMALL, SPREAD, TIC_TAC_TOE, TWIN, TWO_PPO


@pytest.fixture(autouse=True)
def _in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_policy_has_its_own_algorithm_batches_and_metrics() -> None:
    result = train("ppo", **SHORT_SPREAD, policies=TWIN, total_timesteps=960, eval_every=500, eval_episodes=2)
    rows = result.metrics
    # A round has 5 steps of 4 environments: 40 steps of the two agents, 20 of the other.
    pair = [row["time/pair/total_timesteps"] for row in rows if "time/pair/total_timesteps" in row]
    single = [row["time/single/total_timesteps"] for row in rows if "time/single/total_timesteps" in row]
    assert pair == [160, 320, 480, 640]
    assert single[:3] == [20, 40, 60]
    assert [row["time/iterations"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["time/total_timesteps"] == pair[-1] + single[-1] >= 960
    assert any("train/pair/clip_fraction" in row for row in rows)
    assert any("train/single/q_values" in row for row in rows)
    evaluated = next(row for row in rows if "eval/mean_reward" in row)
    total = 2 * evaluated["eval/pair/mean_reward"] + evaluated["eval/single/mean_reward"]
    assert evaluated["eval/mean_reward"] == pytest.approx(total)
    assert not any(name.startswith("train/") and name.count("/") == 1 for row in rows for name in row)
    _check_files(result)


def _check_files(result: Any) -> None:
    files = {path.name for path in result.path.iterdir()}
    assert {"config.json", "metrics.jsonl", "plan.svg", "summary.json", "checkpoints"} <= files
    (events,) = result.path.glob("events.out.tfevents.*")
    assert b"rollout/pair/ep_rew_mean" in events.read_bytes()
    about = json.loads((result.path / "config.json").read_text())
    assert about["algorithm"] == "ppo"
    assert "spaces" not in about
    assert about["policies"]["single"]["agents"] == ["agent_2"]
    assert about["policies"]["single"]["config"]["target_every"] == 5
    summary = json.loads((result.path / "summary.json").read_text())
    assert summary["algorithm"] == "dqn+ppo"
    assert summary["timesteps"] == sum(policy["timesteps"] for policy in summary["policies"].values())
    assert Checkpoints(result.path / "checkpoints").best() is not None


def test_the_total_return_of_an_episode_is_that_of_all_agents() -> None:
    # All three agents of this environment get 10 times the number of the step, and their own number.
    result = train("ppo", env=ComeAndGo, policies="per-agent", **SMALL, iterations=6)
    agents = [
        sum(10 * step + number for step in steps) for number, steps in enumerate([(1, 2), (2, 3, 4), range(1, 5)])
    ]
    assert set(result.returns) == {sum(agents)}
    assert result.summary["episodes"] == len(result.returns) == 8
    assert [policy["mean_return"] for policy in result.summary["policies"].values()] == agents
    assert result.metrics[-1]["rollout/ep_len_mean"] == 4


TRAINERS = [name for name in algorithm_names() if has_rollouts(name) and not find_algorithm(name).needs_tasks]
TRAINERS.remove("slateq")  # no agent of this environment recommends slates
TRAINERS.remove("ddppo")  # it trains on the workers, which all policies share


@pytest.mark.parametrize("name", TRAINERS)
def test_every_algorithm_can_train_a_policy_behind_the_split(name: str) -> None:
    config = find_algorithm(name).config
    small = {"learning_starts": 20, "batch_size": 8, "buffer_size": 500, "episodes_per_iter": 4, "hidden": (8,)}
    if name in ("a3c", "appo", "impact", "impala"):
        small["batch_steps"] = 40
    if name == "r2d2":
        small |= {"sequence_steps": 10, "burn_in": 5}
    own = {key: value for key, value in small.items() if hasattr(config, key) and key not in UNUSED.get(name, set())}
    kwargs = {"max_cycles": 10, "continuous_actions": "discrete" not in find_algorithm(name).actions}
    policies = {"tried": {"agents": ["agent_0"], "algorithm": name, **own}, "others": {"agents": ["agent_[12]"]}}
    settings = {**SHORT_SPREAD, "env_kwargs": kwargs, "policies": policies}
    algorithm = find_algorithm("ppo")
    cfg = algorithm.settings(**{key: value for key, value in settings.items() if key not in ("policies", "progress")})
    before = make_training(algorithm, cfg, policies=policies).policies["tried"].agent.sha256()
    result = train("ppo", run_dir="run", total_timesteps=600, **settings)
    assert result.summary["policies"]["tried"]["weights_sha256"] != before
    assert result.summary["policies"]["tried"]["timesteps"] > 100
    more = resume("run", total_timesteps=900, progress=False).summary["policies"]["tried"]
    assert more["timesteps"] > result.summary["policies"]["tried"]["timesteps"]


class CheckGames:
    """Checks the rows of tic-tac-toe that a shard collects, and counts the games."""

    games: ClassVar[list[int]] = []
    """The number of rows of every game."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[float, bool]]] = {}

    def __call__(self, batch: Mapping[str, Any], *, shard: Any = injected) -> Any:
        for slot in range(batch["valid"].shape[1]):
            for row in np.flatnonzero(batch["valid"][:, slot]):
                allowed = batch["obs"]["action_mask"][row, slot]
                assert allowed[batch["action"][row, slot]] == 1
                over = bool(batch["terminated"][row, slot])
                self.rows.setdefault(slot, []).append((float(batch["reward"][row, slot]), over))
        for game in range(batch["valid"].shape[1] // 2):
            self._take_games(self.rows.get(2 * game, []), self.rows.get(2 * game + 1, []))
        return batch

    def _take_games(self, first: list[tuple[float, bool]], second: list[tuple[float, bool]]) -> None:
        while any(over for _, over in first) and any(over for _, over in second):
            ends = [[over for _, over in rows].index(True) + 1 for rows in (first, second)]
            rewards = [[reward for reward, _ in rows[:end]] for rows, end in zip((first, second), ends, strict=True)]
            assert all(reward == 0 for own in rewards for reward in own[:-1])
            assert sorted(own[-1] for own in rewards) in ([-1, 1], [0, 0])
            CheckGames.games.append(sum(ends))
            del first[: ends[0]], second[: ends[1]]


def test_games_have_no_ignored_action_and_the_loser_gets_its_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    CheckGames.games.clear()
    ppo = find_algorithm("ppo")

    def plan(rollouts: Any, cfg: Any, ctx: Any) -> Iter[TrainStats]:
        return rollouts.for_each(CheckGames()).gather_sync().flatten().for_each(CountSteps(ctx.learner))

    monkeypatch.setitem(vars(ppo), "plan", plan)
    train("ppo", env=TIC_TAC_TOE, **SMALL, iterations=60)
    assert len(CheckGames.games) > 30
    assert {5, 9} <= set(CheckGames.games) <= set(range(5, 10))


def test_an_algorithm_can_ask_for_the_global_state(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = find_algorithm("ppo")

    def plan(rollouts: Any, cfg: Any, ctx: Any) -> Iter[TrainStats]:
        return rollouts.for_each(check_joint).gather_sync().flatten().for_each(CountSteps(ctx.learner))

    monkeypatch.setitem(vars(ppo), "plan", plan)
    monkeypatch.setattr(ppo.config, "global_state", True)
    train("ppo", **SHORT_SPREAD, iterations=2)


def check_joint(batch: Any) -> Any:
    agents = joint(batch, num_agents=3)
    assert agents["reward"].shape == (5, 2, 3)
    assert agents["global_state"].shape == (5, 2, 54)  # what all three agents observe
    assert (agents["global_state"] == agents["obs"].reshape(5, 2, 54)).all()
    return batch


def test_games_of_turns_train_evaluate_and_resume() -> None:
    policies = {"first": {"agents": "player_1"}, "second": {"agents": "player_2", **DQN, "n_step": 2}}
    settings = {**SMALL, "env": TIC_TAC_TOE, "policies": policies}
    train("ppo", run_dir="run", total_timesteps=300, **settings)
    result = resume("run", total_timesteps=600, eval_every=100, progress=False)
    assert set(result.returns) == {0.0}  # what one wins the other loses
    policies = load("run")
    evaluation = policies.evaluate(4, deterministic=False)
    assert (evaluation.by_agent["player_1"] == -evaluation.by_agent["player_2"]).all()
    assert (evaluation.lengths >= 5).all()
    assert (evaluation.lengths <= 9).all()
    mask = np.array([0, 0, 1, 0, 0, 0, 0, 0, 0], np.int8)
    obs = {"observation": np.zeros((3, 3, 2), np.int8), "action_mask": mask}
    assert policies["player_2"].act(obs) == policies["second"].act(obs) == 2


def test_policies_are_loaded_by_agent_and_by_policy() -> None:
    result = train("ppo", run_dir="run", iterations=4, **SHORT_SPREAD, policies=TWO_PPO, network="lstm")
    policies, obs = load("run", "latest"), np.linspace(-1, 1, 18, dtype=np.float32)
    assert list(policies) == ["agent_0", "agent_1", "agent_2"]
    assert policies["agent_0"].sha256() == policies["pair"].sha256() != policies["single"].sha256()
    assert policies.sha256() == result.summary["weights_sha256"] == result.policy.sha256()
    for _ in range(3):
        policies["agent_0"].act(obs)  # has a recurrent state of its own
    assert any(part.abs().sum() > 0 for part in policies["agent_0"]._state.values())
    assert policies["agent_1"]._state is None
    with pytest.raises(ConfigError, match=r"unknown agent or policy 'agent_9'\. Did you mean 'agent_"):
        policies["agent_9"]
    assert policies.evaluate(3, seed=1).returns.tolist() == result.policy.evaluate(3, seed=1).returns.tolist()


def narrow(observation_space: Any, action_space: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(observation_space.shape[0], 4), nn.Tanh(), nn.Linear(4, action_space.n))


def test_the_settings_of_a_run_train_another_one() -> None:
    """The table of a policy has all settings of its algorithm, also those without an effect."""
    first = train("ppo", **SHORT_SPREAD, policies=TWIN, iterations=3)
    again = train(config=first.path, iterations=3, progress=False)
    described = [json.loads((run.path / "config.json").read_text())["policies"] for run in (first, again)]
    assert described[0] == described[1]
    assert again.summary["weights_sha256"] == first.summary["weights_sha256"]


def test_a_policy_may_have_a_network_of_its_own() -> None:
    policies = {"own": {"agents": "agent_0", "network": narrow}, "built-in": {"agents": "agent_[12]"}}
    train("ppo", run_dir="run", iterations=2, **SHORT_SPREAD, policies=policies)
    with pytest.raises(ConfigError, match=r"the network of this run is a function, 'narrow'\. Pass it again"):
        load("run")
    loaded = load("run", "latest", network=narrow)
    sizes = {name: sum(part.numel() for part in own.policy.parameters()) for name, own in loaded.policies.items()}
    assert sizes["own"] == 18 * 4 + 4 + 4 * 5 + 5 != sizes["built-in"]
    again = resume("run", network=narrow, iterations=4, progress=False)
    assert again.summary["iterations"] == 4


class Watch(Callback):
    """Counts what it is notified of, and returns a metric of episodes."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> bool | None:
        self.calls.append("iteration")
        assert set(run.policy.policies) == {"shared"}
        return run.iterations < 3

    def on_evaluation_end(self, run: Any, metrics: dict[str, Any]) -> None:
        self.calls.append("evaluation")

    def on_episode_end(self, info: dict[str, Any]) -> Mapping[str, float]:
        assert list(info["agents"]) == ["early", "late", "whole"]
        return {"length": info["episode"]["l"]}


class Informed(ComeAndGo):
    """Reports in the infos of its agents; all of them have success but `loser`."""

    loser = ""

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        *rest, _ = super().step(actions)
        return *rest, {agent: {"is_success": agent != self.loser, "speed": 3} for agent in actions}


def test_callbacks_and_infos_work_with_several_agents() -> None:
    watch = Watch()
    result = train(
        "ppo", env=Informed, **SMALL, callbacks=[watch], info_keys=("speed",), eval_every=30, eval_episodes=1,
        policies="shared",
    )  # fmt: skip
    assert result.summary["stopped_by"] == "callback Watch"
    assert watch.calls.count("iteration") == 3
    assert watch.calls.count("evaluation") == 3
    row = result.metrics[-1]
    assert (row["episode/length"], row["env/speed_mean"], row["rollout/success_rate"]) == (4, 3, 1)


class Loses(Informed):
    """The agent that leaves first has no success."""

    loser = "early"


def test_an_agent_that_leaves_early_counts_for_the_success_of_all() -> None:
    settings = {**SMALL, "eval_every": 30, "eval_episodes": 1, "policies": "shared", "iterations": 2}
    row = train("ppo", env=Loses, **settings).metrics[-1]
    assert (row["rollout/success_rate"], row["eval/success_rate"]) == (0, 0)


class Reuses(ComeAndGo):
    """Only the second episode is a success, and every step changes and returns the same info."""

    num_episodes = 0
    info: ClassVar[dict[str, Any]] = {}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.num_episodes += 1
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        *rest, _ = super().step(actions)
        self.info["is_success"] = self.num_episodes == 2
        return *rest, dict.fromkeys(actions, self.info)


def test_an_environment_may_return_the_same_info_in_all_episodes() -> None:
    result = train("ppo", env=Reuses, **SMALL, policies="shared", iterations=1)
    assert result.policy.evaluate(3).successes.tolist() == [0, 1, 0]


class CountsAgents(Callback):
    """Reports the number of agents whose infos it gets."""

    def on_episode_end(self, info: dict[str, Any]) -> Mapping[str, float]:
        return {"agents": len(info["agents"])}


@pytest.mark.parametrize("env", [SPREAD, TIC_TAC_TOE])
def test_callbacks_get_the_infos_of_all_agents_also_if_they_are_empty(env: str) -> None:
    kwargs = {"max_cycles": 5} if env == SPREAD else {}
    result = train("ppo", env=env, env_kwargs=kwargs, **SMALL, callbacks=[CountsAgents()], iterations=3)
    reported = [row["episode/agents"] for row in result.metrics if "episode/agents" in row]
    assert set(reported) == {3 if env == SPREAD else 2}


class KillsWorker(Callback):
    """Kills a worker after the second iteration."""

    def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> None:
        if run.iterations == 2:
            worker = run.training._weights.senders[0].workers[0]
            os.kill(worker.call("pid").result(30), signal.SIGKILL)


def test_a_killed_worker_is_restarted_with_the_weights_of_all_policies() -> None:
    settings = {**SHORT_SPREAD, "engine": "process", "policies": TWO_PPO}
    result = train("ppo", **settings, num_workers=2, iterations=12, callbacks=[KillsWorker()])
    assert result.summary["worker_restarts"] == 1
    assert result.summary["iterations"] == 12


def test_a_worker_that_always_dies_ends_the_run() -> None:
    settings = {**SMALL, "env": Dies, "engine": "process", "policies": "shared"}
    with pytest.raises(ShardFailed, match="restart budget"):
        train("ppo", **settings, num_workers=1, iterations=3, max_restarts=1)


class Dies(ComeAndGo):
    """Kills its process in the first step, unless that is where the cost of a step is measured."""

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().step(actions)


def test_the_plan_shows_the_split_and_the_plan_of_every_policy() -> None:
    algorithm = find_algorithm("ppo")
    cfg = algorithm.settings(env=SPREAD)
    with make_training(algorithm, cfg, policies=TWIN).open_flow(run=False) as flow:
        plan = flow.explain()
    assert "split(pair, single)" in plan
    assert re.search(r"for_each\(pair: AddAdvantages\) +4 shards", plan)
    assert re.search(r"for_each\(single: Transitions\) +4 shards", plan)
    assert "for_each(StoreToReplay)" in plan
