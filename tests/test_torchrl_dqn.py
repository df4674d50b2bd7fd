"""The TorchRL DQN example: it prints the same losses on every engine, and samples uniformly."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from raceway.errors import ReplayEmpty
from raceway.runner import Runner
from tests.test_examples import run

ROOT = Path(__file__).parents[1]
DQN = ROOT / "examples/torchrl_dqn"
MODULES = ("collector", "main", "model", "replay_buffer", "training")
SHORT = [str(DQN / "main.py"), "--iterations", "6", "--frames-per-collection", "40", "--optim-steps", "2"]
SHARDED = [*SHORT, "--replay", "sharded", "--replay-shards", "3", "--sample-parallelism", "2", "--buffer-size", "400"]


def losses(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"Mean Reward: +([\d.-]+) \| Loss: +([\d.-]+)", done.stdout)
    assert len(rows) == 6, done.stdout
    assert len({loss for _, loss in rows}) > 3, "losses change between iterations"
    return [f"{reward} {loss}" for reward, loss in rows]


# The program.


@pytest.fixture(scope="module")
def local() -> subprocess.CompletedProcess[str]:
    return run(*SHORT, "--local")


@pytest.fixture(scope="module")
def sharded() -> subprocess.CompletedProcess[str]:
    return run(*SHARDED, "--local")


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    path = tmp_path_factory.mktemp("dqn") / "metrics.json"
    done = run(*SHORT, "--engine", "process", "--metrics-json", str(path))
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


def test_process_engine_gives_the_losses_of_a_local_run(
    local: subprocess.CompletedProcess[str], distributed: tuple[subprocess.CompletedProcess[str], dict[str, Any]]
) -> None:
    assert losses(distributed[0]) == losses(local)


@pytest.mark.parametrize(
    "options", [("--engine", "inline"), ("--engine", "process", "--workers", "3"), ("--engine", "ray")], ids=" ".join
)
def test_sharded_losses_are_the_same_on_every_engine(
    options: tuple[str, ...], sharded: subprocess.CompletedProcess[str]
) -> None:
    assert losses(run(*SHARDED, *options)) == losses(sharded)


def test_engine_from_the_environment_variable(local: subprocess.CompletedProcess[str]) -> None:
    assert losses(run(*SHORT, RACEWAY_ENGINE="inline")) == losses(local)


@pytest.mark.parametrize("mode", ["local", "distributed"])
def test_printed_output(
    mode: str,
    local: subprocess.CompletedProcess[str],
    distributed: tuple[subprocess.CompletedProcess[str], dict[str, Any]],
) -> None:
    done = local if mode == "local" else distributed[0]
    iterations = "".join(
        f"Iteration {number:4d} | ε {0.2 - 0.036 * number:.3f} | Buffer: {160 * (number + 1):6d} | "
        f"Total: {160 * (number + 1):7d} | Mean Reward: <    8.1> | Loss: <  8.4>\n"
        for number in range(6)
    )
    expected = f"""\
{"=" * 60}
{mode.capitalize()} TorchRL DQN on CartPole-v1{" using Raceway Runner" if mode == "distributed" else ""}
{"=" * 60}

Configuration:
  Environment: CartPole-v1
  Observation dim: 4
  Actions: 2
  Iterations: 6
  Collections per iteration: 4
  Frames per collection: 40
  Total frames: 960
  Replay: simple
  Buffer size: 10000
  Batch size: 64
  Sample parallelism: 1
  Seed: 0

Starting {mode} training...
{iterations}
{"=" * 60}
Training Complete!
  Total time: #s
  Frames: 960 (# frames/sec)
  First Loss: #
  Last Loss: #
  Last Mean Reward: #

Timing:
  Collect:   <  8.3>s total, #s/iteration
  State:     <  8.3>s total, #s/iteration
  Sample:    <  8.3>s total, #s/iteration
  Optimise:  <  8.3>s total, #s/iteration
  Iteration: <  8.3>s total, #s/iteration
{"=" * 60}
"""
    out = re.sub(r"(?<=Reward: )(?=.{8} \|) *-?\d+\.\d", "<    8.1>", done.stdout)
    out = re.sub(r"(?<=Loss: )(?=.{8}\n) *-?\d+\.\d{4}", "<  8.4>", out)
    out = re.sub(r"(?m)^(  [A-Z].{9}) (?=.{8}s total) *\d+\.\d{3}(?=s total)", r"\1 <  8.3>", out)
    out = re.sub(r"(?<=time: )\d+\.\d\d(?=s\n)|(?<=\()\d+\.\d(?= frames/sec)|\d+\.\d{4}(?=s/iteration)", "#", out)
    out = re.sub(r"(?<=First Loss: )\d+\.\d{4}|(?<=Last Loss: )\d+\.\d{4}|(?<=Mean Reward: )\d+\.\d(?=\n)", "#", out)
    assert out == expected
    assert done.stderr == ""
    rows = losses(done)
    assert f"First Loss: {rows[0].split()[1]}\n  Last Loss: {rows[-1].split()[1]}\n" in done.stdout


def test_metrics_json(distributed: tuple[subprocess.CompletedProcess[str], dict[str, Any]]) -> None:
    done, metrics = distributed
    assert list(metrics) == ["mode", "environment", "configuration", "summary", "iterations"]
    assert metrics["mode"] == "distributed"
    assert metrics["environment"] == {"name": "CartPole-v1", "observation_dim": 4, "num_actions": 2}
    assert metrics["configuration"] == {
        "iterations": 6,
        "collections": 4,
        "frames_per_collection": 40,
        "num_envs": 1,
        "batch_size": 64,
        "buffer_size": 10_000,
        "optim_steps": 2,
        "replay": "simple",
        "replay_shards": 1,
        "sample_parallelism": 1,
        "sample_work": 0,
        "sample_wait": 0.0,
        "local": False,
        "engine": "process",
        "workers": None,
        "seed": 0,
        "epsilon": [0.2, 0.02],
        "warmup_frames": 100,
        "hidden": 128,
        "gamma": 0.99,
        "lr": 1e-3,
        "tau": 0.05,
        "norm": 10.0,
    }
    rows, summary = metrics["iterations"], metrics["summary"]
    assert [f"{row['mean_reward']:.1f} {row['loss']:.4f}" for row in rows] == losses(done)
    assert [row["total"] for row in rows] == [row["buffer"] for row in rows] == [160 * n for n in range(1, 7)]
    assert summary["frames"] == 960
    assert summary["first_loss"] == rows[0]["loss"]
    assert summary["last_loss"] == rows[-1]["loss"]
    assert summary["frames_per_second"] == pytest.approx(960 / summary["seconds"])
    for phase in ("collect", "state", "sample", "optimise", "iteration"):
        seconds = sum(row["seconds"][phase] for row in rows)
        assert summary["timing"][phase]["total"] == pytest.approx(seconds)
        assert summary["timing"][phase]["mean"] == pytest.approx(seconds / 6)
    parts = sum(summary["timing"][phase]["total"] for phase in ("collect", "state", "sample", "optimise"))
    assert 0 < parts <= summary["timing"]["iteration"]["total"] <= summary["seconds"]


def test_interrupt() -> None:
    # Restore the signal's default: a shell without job control makes background processes, tests included, ignore it.
    start = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", start, sys.executable, SHORT[0], "--iterations", "100000", "--engine", "process"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        assert any(line.startswith("Iteration    3") for line in program.stdout)
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does
        out, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (130, "")
    assert "Training Complete" not in out


def test_unknown_engine() -> None:
    done = run(*SHORT, RACEWAY_ENGINE="proces")
    assert done.returncode == 1
    assert done.stderr.startswith("error: unknown engine 'proces'. Did you mean 'process'?")


# The parts of the program.


@pytest.fixture
def dqn(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of the program, which other examples have under the same names."""
    monkeypatch.syspath_prepend(DQN)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    threads = torch.get_num_threads()
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    torch.set_num_threads(threads)
    for name in MODULES:
        sys.modules.pop(name, None)


def train(dqn: SimpleNamespace, *options: str, where: str = "--local") -> list[dict[str, Any]]:
    """Train in this process, and return the metrics of each iteration."""
    rows: list[dict[str, Any]] = []
    dqn.training.run(dqn.main.parse_args([*where.split(), *options]), "inline", rows.append)
    return rows


@pytest.mark.parametrize(("shards", "size"), [("1", "160"), ("1", "170"), ("3", "240"), ("3", "243"), ("4", "160")])
def test_buffer_barely_larger_than_an_iteration(shards: str, size: str, dqn: SimpleNamespace) -> None:
    options = ["--iterations", "12", "--frames-per-collection", "40", "--replay", "sharded", "--optim-steps", "3"]
    options += ["--replay-shards", shards, "--buffer-size", size]
    local, distributed = (train(dqn, *options, where=where) for where in ("--local", "--engine inline"))
    for row in local + distributed:
        del row["seconds"]
    assert local == distributed
    assert local[-1]["buffer"] == int(size)


def test_losses_depend_on_the_seed(dqn: SimpleNamespace) -> None:
    runs = [[row["loss"] for row in train(dqn, "--iterations", "3", "--seed", seed)] for seed in "011"]
    assert runs[0] != runs[1] == runs[2]


@pytest.mark.parametrize("env", ["CartPole-v1", "acrobot", "mountaincar", "lunarlander"])
@pytest.mark.parametrize("num_envs", ["1", "10"])
def test_environments_and_vector_widths(env: str, num_envs: str, dqn: SimpleNamespace) -> None:
    if env == "lunarlander":
        pytest.importorskip("Box2D")
    rows = train(dqn, "--env", env, "--iterations", "2", "--num-envs", num_envs)
    assert [row["total"] for row in rows] == [row["buffer"] for row in rows] == [400, 800]
    assert all(row["loss"] > 0 for row in rows)
    max_episodes = 4 * 200 // {"CartPole-v1": 8, "acrobot": 500, "mountaincar": 200, "lunarlander": 60}[env]
    assert 0 <= sum(row["episodes"] for row in rows) <= max_episodes, "no episode is shorter than the length above"
    assert (rows[0]["mean_reward"] is None) == (rows[0]["episodes"] == 0)
    assert rows[1]["episodes"] > 0 or env != "CartPole-v1"


def test_no_gradient_steps_during_warmup(dqn: SimpleNamespace) -> None:
    rows = train(dqn, "--iterations", "4", "--collections", "1", "--frames-per-collection", "40")
    assert [row["loss"] is None for row in rows] == [True, True, False, False]
    assert dqn.main.format_row(rows[0]).endswith("Loss:        -")
    assert dqn.main.format_row(rows[2]).endswith(f"Loss: {rows[2]['loss']:8.4f}")


def test_it_learns_to_balance(dqn: SimpleNamespace) -> None:
    """The defaults take too few gradient steps to learn; here are some thousand."""
    options = ("--iterations", "150", "--num-envs", "10", "--optim-steps", "20", "--buffer-size", "20000")
    rewards = [row["mean_reward"] for row in train(dqn, *options) if row["mean_reward"] is not None]
    assert np.mean(rewards[-20:]) > 3 * np.mean(rewards[:20])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--env Pendulum-v1", "DQN needs discrete actions, and those of Pendulum-v1 are Box"),
        ("--env FrozenLake-v1", "the network needs array observations, and those of FrozenLake-v1 are Discrete(16)"),
        ("--env cartpol", "unknown environment 'cartpol'. Did you mean 'cartpole'?"),
        ("--env lunarlander", "--env LunarLander-v3 needs Box2D: pip install 'gymnasium[box2d]'"),
        (
            "--replay sharded --replay-shards 20 --buffer-size 10",
            "--replay-shards 20 is more than --buffer-size 10",
        ),
        (
            "--replay sharded --sample-parallelism 5",
            "--sample-parallelism 5 is more than the number of replay shards, 4",
        ),
        ("--sample-parallelism 2", "--sample-parallelism 2 is more than the number of replay shards, 1"),
        (
            "--replay sharded --batch-size 3 --sample-parallelism 4",
            "--sample-parallelism 4 is more than --batch-size 3",
        ),
        ("--replay-shards 4", "--replay-shards 4 needs --replay sharded"),
        ("--num-envs 3", "--frames-per-collection 100 is not a multiple of --num-envs 3"),
        ("--buffer-size 399", "up to 400 frames to a replay shard, which holds 399. Make --buffer-size at least 400."),
        ("--local --engine ray", "--local works in this process; leave out --engine and --workers"),
        ("--local --workers 2", "--local works in this process; leave out --engine and --workers"),
        ("--iterations 0", "argument --iterations: must be a whole number from 1, not '0'"),
        ("--sample-work=-1", "argument --sample-work: must be a whole number from 0, not '-1'"),
        ("--sample-wait nan", "argument --sample-wait: must be a number from 0, not 'nan'"),
        ("--sample-wait long", "argument --sample-wait: must be a number from 0, not 'long'"),
        ("--seed=-1", "argument --seed: must be a whole number from 0 to 2**64 - 1, not '-1'"),
        ("--replay both", "argument --replay: invalid choice: 'both'"),
        ("--metrics-json /nowhere/at/all.json", "--metrics-json: directory /nowhere/at does not exist"),
    ],
)
def test_invalid_options_are_rejected(
    options: str,
    message: str,
    dqn: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)  # as if not installed
    with pytest.raises(SystemExit) as stopped:
        dqn.main.parse_args(options.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_options_are_validated_before_torchrl_is_imported() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(DQN)!r})\n"
        "import main\n"
        "main.parse_args([])\n"
        "sys.exit('torchrl' in sys.modules or 'torch' in sys.modules)"
    )
    done = run("-c", program)
    assert done.returncode == 0, done.stderr


def test_defaults(dqn: SimpleNamespace) -> None:
    assert vars(dqn.main.parse_args([])) == {
        "env": "CartPole-v1",
        "iterations": 20,
        "collections": 4,
        "frames_per_collection": 100,
        "num_envs": 1,
        "batch_size": 64,
        "buffer_size": 10_000,
        "optim_steps": 1,
        "replay": "simple",
        "replay_shards": 1,
        "sample_parallelism": 1,
        "sample_work": 0,
        "sample_wait": 0.0,
        "local": False,
        "engine": None,
        "workers": None,
        "seed": 0,
        "metrics_json": None,
        "obs_dim": 4,
        "num_actions": 2,
    }
    assert dqn.main.parse_args(["--replay", "sharded"]).replay_shards == 4


def test_numpy_network_equals_torch_network(dqn: SimpleNamespace) -> None:
    learner = dqn.model.Learner(4, 3, seed=0, **dqn.training.SETTINGS)
    obs = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    data = learner.actor(dqn.model.TensorDict({"observation": torch.from_numpy(obs)}, [50]))
    assert dqn.collector.NumpyNetwork(learner.weights(), 50)(obs).tolist() == data["action"].tolist()
    single = dqn.collector.NumpyNetwork(learner.weights(), 1)
    assert [int(single(row[None])[0]) for row in obs] == data["action"].tolist()
    assert len(set(data["action"].tolist())) > 1


@pytest.mark.parametrize("num_envs", [1, 5])
def test_collected_frames_match_the_environment(num_envs: int, dqn: SimpleNamespace) -> None:
    """Stepping the environment from each state with the same action gives the transition that was appended."""
    storage = dqn.replay_buffer.SlowLocalStorage(10_000)
    options = {"num_envs": num_envs, "frames": 200, "writers": [storage], "seed": 3, "number": 1}
    collector = dqn.collector.Collector("CartPole-v1", **options)
    weights = dqn.model.Learner(4, 2, seed=0, **dqn.training.SETTINGS).weights()
    returns = []
    for iteration in range(3):
        returns += collector.collect(weights, 0.5, iteration, 4)
    frames = storage[:]
    assert len(frames) == 600
    env = gym.make("CartPole-v1").unwrapped
    env.reset()
    for row in frames:
        env.state = row["observation"].double().numpy()
        env.steps_beyond_terminated = None
        next_obs, reward, terminated, _, _ = env.step(int(row["action"]))
        assert np.allclose(next_obs, row["next", "observation"].numpy(), atol=1e-5)
        assert row["next", "reward"] == reward
        assert bool(row["next", "terminated"]) == terminated
    done = frames["next", "done"].reshape(-1, num_envs)
    assert int(done.sum()) == len(returns) > 10
    lengths = [0] * num_envs
    episode_lengths = []
    for step in done.tolist():
        for slot, slot_done in enumerate(step):
            lengths[slot] += 1
            if slot_done:
                episode_lengths.append(float(lengths[slot]))
                lengths[slot] = 0
    assert episode_lengths == returns
    next_obs = frames["next", "observation"].reshape(-1, num_envs, 4)[:-1]
    obs = frames["observation"].reshape(-1, num_envs, 4)[1:]
    assert torch.equal(next_obs[~done[:-1]], obs[~done[:-1]]), "an open episode continues"
    assert obs[done[:-1]].abs().max() <= 0.05, "a new episode starts from a reset"
    collector.close()


def test_truncation_is_not_termination(dqn: SimpleNamespace) -> None:
    storage = dqn.replay_buffer.SlowLocalStorage(10_000)
    options = {"num_envs": 1, "frames": 450, "writers": [storage], "seed": 0, "number": 0}
    collector = dqn.collector.Collector("MountainCar-v0", **options)
    weights = dqn.model.Learner(2, 3, seed=0, **dqn.training.SETTINGS).weights()
    assert collector.collect(weights, 1.0, 0, 1) == [-200.0, -200.0]
    frames = storage[:]
    assert np.flatnonzero(frames["next", "done"].numpy()).tolist() == [199, 399]
    assert not frames["next", "terminated"].any()
    collector.close()


def test_exploration_rate(dqn: SimpleNamespace) -> None:
    weights = [
        (np.zeros((8, 4), np.float32), np.zeros(8, np.float32)),
        (np.zeros((2, 8), np.float32), np.array([0, 1], np.float32)),
    ]
    for epsilon, greedy_share in ((0.0, 1.0), (0.5, 0.75), (1.0, 0.5)):
        storage = dqn.replay_buffer.SlowLocalStorage(10_000)
        options = {"num_envs": 10, "frames": 4000, "writers": [storage], "seed": 0, "number": 0}
        collector = dqn.collector.Collector("CartPole-v1", **options)
        collector.collect(weights, epsilon, 0, 1)
        assert storage[:]["action"].float().mean() == pytest.approx(greedy_share, abs=0.03)
        collector.close()


def test_collections_go_to_shards_in_turn(dqn: SimpleNamespace) -> None:
    storages = [dqn.replay_buffer.SlowLocalStorage(1000) for _ in range(3)]
    options = {"num_envs": 1, "frames": 10, "writers": storages, "seed": 0}
    collectors = [dqn.collector.Collector("CartPole-v1", number=number, **options) for number in range(4)]
    weights = dqn.model.Learner(4, 2, seed=0, **dqn.training.SETTINGS).weights()
    sizes = []
    for iteration in range(3):
        for collector in collectors:
            collector.collect(weights, 0.1, iteration, 4)
        sizes.append([len(storage) for storage in storages])
    assert sizes == [[20, 10, 10], [30, 30, 20], [40, 40, 40]]
    for collector in collectors:
        collector.close()


def test_every_sampled_row_costs_work_and_waiting(dqn: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(dqn.replay_buffer, "work", lambda rounds: calls.append(rounds))
    monkeypatch.setattr(dqn.replay_buffer.time, "sleep", lambda seconds: calls.append(("sleep", seconds)))
    storage = dqn.replay_buffer.SlowLocalStorage(10)
    storage.append({"a": np.arange(4)})
    shard = dqn.replay_buffer.ReplayShard(storage, 0)
    shard.sample(3, seed=0)
    assert calls == []
    storage.sample_work, storage.sample_wait = 7, 2.5
    shard.sample(3, seed=0)
    assert calls == [7, 7, 7, ("sleep", 0.0075)]
    calls.clear()
    storage.get(1)
    assert calls == [7, ("sleep", 0.0025)]
    monkeypatch.undo()
    assert [dqn.replay_buffer.work(rounds) for rounds in range(3)] == [0, 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_sampling_from_empty_shards(dqn: SimpleNamespace) -> None:
    with Runner("empty", engine="inline") as rr:
        shard = rr.service(dqn.replay_buffer.ReplayShard(dqn.replay_buffer.SlowObjectStorage(rr, 5), 2))
        with pytest.raises(ReplayEmpty, match=r"replay shard 2 holds no frames yet. Collect some"):
            rr.get(shard.sample(3, 0))
    with pytest.raises(ReplayEmpty, match="none of 2 replay shards holds a frame yet"):
        dqn.replay_buffer.SamplingPlan(8, 1).next([0, 0])


def test_shards_of_equal_size_are_sampled_in_turn(dqn: SimpleNamespace) -> None:
    plan = dqn.replay_buffer.SamplingPlan(64, 2)
    assert [plan.next([100] * 4) for _ in range(4)] == [[(0, 32), (1, 32)], [(2, 32), (3, 32)]] * 2
    plan = dqn.replay_buffer.SamplingPlan(64, 3)
    assert [sum(num for _, num in plan.next([100] * 3)) for _ in range(3)] == [64] * 3
    plan = dqn.replay_buffer.SamplingPlan(10, 1)
    assert [plan.next([0, 5, 0, 5])[0].shard for _ in range(4)] == [1, 3, 1, 3], "empty shards are skipped"
    assert dqn.replay_buffer.shard_sizes(11, 4) == [3, 3, 3, 2]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_every_frame_of_uneven_shards_is_equally_likely(parallelism: int, dqn: SimpleNamespace) -> None:
    """Some of the shards have wrapped around."""
    buffer, capacities, first = dqn.replay_buffer, (50, 7, 120), 0
    with Runner("uniform", engine="inline") as rr:
        shards, stored = [], []
        for number, capacity in enumerate(capacities):
            storage = buffer.SlowObjectStorage(rr, capacity)
            for size in (3, 40, 1, 70, 11, 9)[: 6 if number != 2 else 3]:  # the last is not full
                storage.append({"number": np.arange(first, first := first + size)})
            stored += storage[:]["number"].tolist()
            shards.append(buffer.ReplayShard(storage, number))
        sizes = [shard.size() for shard in shards]
        assert sizes == [50, 7, 44]
        plan, counts, total = buffer.SamplingPlan(61, parallelism), dict.fromkeys(stored, 0), 0
        for step in range(2000):
            for part, (shard, num) in enumerate(plan.next(sizes)):
                for number in shards[shard].sample(num, seed=parallelism * step + part)["number",].tolist():
                    counts[number] += 1
                    total += 1
    assert total == 61 * 2000
    expected = total / len(stored)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(stored) == 101
    assert 53 < statistic < 161, "approximately the 0.01 % and 99.99 % quantiles of χ² with 100 degrees of freedom"


def test_a_sample_depends_on_its_seed_only(dqn: SimpleNamespace) -> None:
    storage = dqn.replay_buffer.SlowLocalStorage(100)
    storage.append({"number": np.arange(100)})
    first, second = (dqn.replay_buffer.ReplayShard(storage, number) for number in range(2))
    torch.manual_seed(0)
    sample = first.sample(20, seed=5)["number",].tolist()
    torch.manual_seed(1)
    assert second.sample(20, seed=6)["number",].tolist() != sample
    assert second.sample(20, seed=5)["number",].tolist() == sample


def test_warm_up_does_not_change_the_learner(dqn: SimpleNamespace) -> None:
    warm, cold = (dqn.model.Learner(4, 2, seed=0, **dqn.training.SETTINGS) for _ in range(2))
    warm.warm_up(8)
    rng = np.random.default_rng(0)
    batch = {
        ("observation",): rng.standard_normal((8, 4)).astype(np.float32),
        ("action",): rng.integers(0, 2, 8),
        ("next", "observation"): rng.standard_normal((8, 4)).astype(np.float32),
        ("next", "reward"): np.ones((8, 1), np.float32),
        ("next", "terminated"): np.zeros((8, 1), bool),
        ("next", "done"): np.zeros((8, 1), bool),
    }
    parts = [{path: column[:3] for path, column in batch.items()}, {path: column[3:] for path, column in batch.items()}]
    before = [weight.copy() for layer in cold.weights() for weight in layer]
    warm_losses, cold_losses = ([learner.update(parts) for _ in range(5)] for learner in (warm, cold))
    assert warm_losses == cold_losses
    assert len(set(warm_losses)) == 5
    after = [weight for layer in cold.weights() for weight in layer]
    assert not any(np.array_equal(a, b) for a, b in zip(before, after, strict=True)), "weights() is up to date"


def test_readme_and_pyproject_match_the_program(dqn: SimpleNamespace) -> None:
    project = tomllib.loads((DQN / "pyproject.toml").read_text())["project"]
    dependencies = {re.split("[<>=]", line)[0] for line in project["dependencies"]}
    assert dependencies == {"raceway[torchrl]", "torch", "torchrl", "tensordict", "gymnasium"}
    assert project["optional-dependencies"]["box2d"] == ["gymnasium[box2d]"]
    page = (DQN / "README.md").read_text()
    options = {name for name in vars(dqn.main.parse_args([])) if name not in ("obs_dim", "num_actions")}
    assert set(re.findall(r"\n\| `--([a-z-]+)` \|", page)) == {name.replace("_", "-") for name in options}
    snippet = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert snippet is not None
    assert textwrap.indent(snippet.group(1), "    " * 2) in (DQN / "training.py").read_text()
