"""The TorchRL DQN example: it runs on every engine, says the same everywhere, and samples exactly."""

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
    found = re.findall(r"Mean Reward: +([\d.-]+) \| Loss: +([\d.-]+)", done.stdout)
    assert len(found) == 6, done.stdout
    assert len({loss for _, loss in found}) > 3, "they differ from one iteration to the next"
    return [f"{reward} {loss}" for reward, loss in found]


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


def test_it_learns_the_same_on_the_process_engine(
    local: subprocess.CompletedProcess[str], distributed: tuple[subprocess.CompletedProcess[str], dict[str, Any]]
) -> None:
    assert losses(distributed[0]) == losses(local)


@pytest.mark.parametrize(
    "options", [("--engine", "inline"), ("--engine", "process", "--workers", "3"), ("--engine", "ray")], ids=" ".join
)
def test_it_learns_the_same_everywhere(options: tuple[str, ...], sharded: subprocess.CompletedProcess[str]) -> None:
    assert losses(run(*SHARDED, *options)) == losses(sharded)


def test_by_environment_variable(local: subprocess.CompletedProcess[str]) -> None:
    assert losses(run(*SHORT, RACEWAY_ENGINE="inline")) == losses(local)


@pytest.mark.parametrize("mode", ["local", "distributed"])
def test_it_prints_its_progress(
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
    said = re.sub(r"(?<=Reward: )(?=.{8} \|) *-?\d+\.\d", "<    8.1>", done.stdout)
    said = re.sub(r"(?<=Loss: )(?=.{8}\n) *-?\d+\.\d{4}", "<  8.4>", said)
    said = re.sub(r"(?m)^(  [A-Z].{9}) (?=.{8}s total) *\d+\.\d{3}(?=s total)", r"\1 <  8.3>", said)
    said = re.sub(r"(?<=time: )\d+\.\d\d(?=s\n)|(?<=\()\d+\.\d(?= frames/sec)|\d+\.\d{4}(?=s/iteration)", "#", said)
    said = re.sub(r"(?<=First Loss: )\d+\.\d{4}|(?<=Last Loss: )\d+\.\d{4}|(?<=Mean Reward: )\d+\.\d(?=\n)", "#", said)
    assert said == expected
    assert done.stderr == ""
    found = losses(done)
    assert f"First Loss: {found[0].split()[1]}\n  Last Loss: {found[-1].split()[1]}\n" in done.stdout


def test_the_metrics(distributed: tuple[subprocess.CompletedProcess[str], dict[str, Any]]) -> None:
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
        spent = sum(row["seconds"][phase] for row in rows)
        assert summary["timing"][phase]["total"] == pytest.approx(spent)
        assert summary["timing"][phase]["mean"] == pytest.approx(spent / 6)
    parts = sum(summary["timing"][phase]["total"] for phase in ("collect", "state", "sample", "optimise"))
    assert 0 < parts <= summary["timing"]["iteration"]["total"] <= summary["seconds"]


def test_it_is_interrupted() -> None:
    # A shell without job control has what it puts in the background ignore the signal, tests included.
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
        os.killpg(program.pid, signal.SIGINT)  # what a terminal does
        out, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (130, "")
    assert "Training Complete" not in out


def test_an_engine_that_is_not_there() -> None:
    done = run(*SHORT, RACEWAY_ENGINE="proces")
    assert done.returncode == 1
    assert done.stderr.startswith("error: unknown engine 'proces'. Did you mean 'process'?")


# Its parts.


@pytest.fixture
def dqn(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Its modules, whose names are everybody's."""
    monkeypatch.syspath_prepend(DQN)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    threads = torch.get_num_threads()
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    torch.set_num_threads(threads)
    for name in MODULES:
        sys.modules.pop(name, None)


def train(dqn: SimpleNamespace, *options: str, where: str = "--local") -> list[dict[str, Any]]:
    """Train here, and return the figures of each iteration."""
    rows: list[dict[str, Any]] = []
    dqn.training.run(dqn.main.parse_args([*where.split(), *options]), "inline", rows.append)
    return rows


@pytest.mark.parametrize(("shards", "size"), [("1", "160"), ("1", "170"), ("3", "240"), ("3", "243"), ("4", "160")])
def test_a_buffer_that_holds_hardly_more_than_an_iteration(shards: str, size: str, dqn: SimpleNamespace) -> None:
    options = ["--iterations", "12", "--frames-per-collection", "40", "--replay", "sharded", "--optim-steps", "3"]
    options += ["--replay-shards", shards, "--buffer-size", size]
    here, there = (train(dqn, *options, where=where) for where in ("--local", "--engine inline"))
    for row in here + there:
        del row["seconds"]
    assert here == there
    assert here[-1]["buffer"] == int(size)


def test_another_seed_gives_others(dqn: SimpleNamespace) -> None:
    found = [[row["loss"] for row in train(dqn, "--iterations", "3", "--seed", seed)] for seed in "011"]
    assert found[0] != found[1] == found[2]


@pytest.mark.parametrize("env", ["CartPole-v1", "acrobot", "mountaincar", "lunarlander"])
@pytest.mark.parametrize("num_envs", ["1", "10"])
def test_environments_and_vectors_of_them(env: str, num_envs: str, dqn: SimpleNamespace) -> None:
    if env == "lunarlander":
        pytest.importorskip("Box2D")
    rows = train(dqn, "--env", env, "--iterations", "2", "--num-envs", num_envs)
    assert [row["total"] for row in rows] == [row["buffer"] for row in rows] == [400, 800]
    assert all(row["loss"] > 0 for row in rows)
    ended = 4 * 200 // {"CartPole-v1": 8, "acrobot": 500, "mountaincar": 200, "lunarlander": 60}[env]
    assert 0 <= sum(row["episodes"] for row in rows) <= ended, "no episode is that short"
    assert (rows[0]["mean_reward"] is None) == (rows[0]["episodes"] == 0)
    assert rows[1]["episodes"] > 0 or env != "CartPole-v1"


def test_nothing_is_optimised_before_there_is_enough(dqn: SimpleNamespace) -> None:
    rows = train(dqn, "--iterations", "4", "--collections", "1", "--frames-per-collection", "40")
    assert [row["loss"] is None for row in rows] == [True, True, False, False]
    assert dqn.main.line(rows[0]).endswith("Loss:        -")
    assert dqn.main.line(rows[2]).endswith(f"Loss: {rows[2]['loss']:8.4f}")


def test_it_learns_to_balance(dqn: SimpleNamespace) -> None:
    """Not with the few updates of the defaults, but with some thousand."""
    options = ("--iterations", "150", "--num-envs", "10", "--optim-steps", "20", "--buffer-size", "20000")
    rewards = [row["mean_reward"] for row in train(dqn, *options) if row["mean_reward"] is not None]
    assert np.mean(rewards[-20:]) > 3 * np.mean(rewards[:20])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--env Pendulum-v1", "DQN chooses among discrete actions, and those of Pendulum-v1 are Box"),
        ("--env FrozenLake-v1", "the network takes arrays, and observations of FrozenLake-v1 are Discrete(16)"),
        ("--env cartpol", "unknown environment 'cartpol'. Did you mean 'cartpole'?"),
        ("--env lunarlander", "--env LunarLander-v3 needs Box2D: pip install 'gymnasium[box2d]'"),
        (
            "--replay sharded --replay-shards 20 --buffer-size 10",
            "--replay-shards 20 is more than --buffer-size 10 holds",
        ),
        ("--replay sharded --sample-parallelism 5", "--sample-parallelism 5 is more than the 4 replay shards"),
        ("--sample-parallelism 2", "--sample-parallelism 2 is more than the 1 replay shards"),
        (
            "--replay sharded --batch-size 3 --sample-parallelism 4",
            "--sample-parallelism 4 is more than --batch-size 3",
        ),
        ("--replay-shards 4", "--replay-shards 4 needs --replay sharded"),
        ("--num-envs 3", "--frames-per-collection 100 is no multiple of --num-envs 3"),
        ("--buffer-size 399", "up to 400 frames, and it holds 399. Make --buffer-size at least 400."),
        ("--local --engine ray", "--local works in this process; leave out --engine and --workers"),
        ("--local --workers 2", "--local works in this process; leave out --engine and --workers"),
        ("--iterations 0", "argument --iterations: must be a whole number from 1, not '0'"),
        ("--sample-work=-1", "argument --sample-work: must be a whole number from 0, not '-1'"),
        ("--sample-wait nan", "argument --sample-wait: must be a number from 0, not 'nan'"),
        ("--sample-wait long", "argument --sample-wait: must be a number from 0, not 'long'"),
        ("--seed=-1", "argument --seed: must be a whole number from 0 to 2**64 - 1, not '-1'"),
        ("--replay both", "argument --replay: invalid choice: 'both'"),
        ("--metrics-json /nowhere/at/all.json", "--metrics-json: there is no folder /nowhere/at"),
    ],
)
def test_it_refuses(
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
    said = capsys.readouterr().err
    assert message in said.splitlines()[-1]


def test_a_bad_option_is_told_of_before_torchrl_is_imported() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(DQN)!r})\n"
        "import main\n"
        "main.parse_args([])\n"
        "sys.exit('torchrl' in sys.modules or 'torch' in sys.modules)"
    )
    done = run("-c", program)
    assert done.returncode == 0, done.stderr


def test_the_defaults(dqn: SimpleNamespace) -> None:
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


def test_the_network_in_numpy_is_the_one_in_torch(dqn: SimpleNamespace) -> None:
    learner = dqn.model.Learner(4, 3, seed=0, **dqn.training.SETTINGS)
    obs = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    data = learner.actor(dqn.model.TensorDict({"observation": torch.from_numpy(obs)}, [50]))
    assert dqn.collector.NumpyNetwork(learner.weights(), 50)(obs).tolist() == data["action"].tolist()
    one = dqn.collector.NumpyNetwork(learner.weights(), 1)
    assert [int(one(row[None])[0]) for row in obs] == data["action"].tolist()
    assert len(set(data["action"].tolist())) > 1


@pytest.mark.parametrize("num_envs", [1, 5])
def test_collected_frames_are_those_of_the_environment(num_envs: int, dqn: SimpleNamespace) -> None:
    """What a collector appends is what the environment does with the same actions from the same states."""
    storage = dqn.replay_buffer.CostlyLocalStorage(10_000)
    options = {"num_envs": num_envs, "frames": 200, "writers": [storage], "seed": 3, "number": 1}
    collector = dqn.collector.Collector("CartPole-v1", **options)
    weights = dqn.model.Learner(4, 2, seed=0, **dqn.training.SETTINGS).weights()
    returns = [one for iteration in range(3) for one in collector.collect(weights, 0.5, iteration, 4)]
    frames = storage[:]
    assert len(frames) == 600
    env = gym.make("CartPole-v1").unwrapped
    env.reset()
    for row in frames:
        env.state = row["observation"].double().numpy()
        env.steps_beyond_terminated = None
        seen, reward, terminated, _, _ = env.step(int(row["action"]))
        assert np.allclose(seen, row["next", "observation"].numpy(), atol=1e-5)
        assert row["next", "reward"] == reward
        assert bool(row["next", "terminated"]) == terminated
    ended = frames["next", "done"].reshape(-1, num_envs)
    assert int(ended.sum()) == len(returns) > 10
    lengths = [0] * num_envs
    found = []
    for step in ended.tolist():
        for slot, over in enumerate(step):
            lengths[slot] += 1
            if over:
                found.append(float(lengths[slot]))
                lengths[slot] = 0
    assert found == returns
    follow = frames["next", "observation"].reshape(-1, num_envs, 4)[:-1]
    begin = frames["observation"].reshape(-1, num_envs, 4)[1:]
    assert torch.equal(follow[~ended[:-1]], begin[~ended[:-1]]), "an episode goes on where it was"
    assert begin[ended[:-1]].abs().max() <= 0.05, "or begins anew"
    collector.close()


def test_truncation_is_no_termination(dqn: SimpleNamespace) -> None:
    storage = dqn.replay_buffer.CostlyLocalStorage(10_000)
    options = {"num_envs": 1, "frames": 450, "writers": [storage], "seed": 0, "number": 0}
    collector = dqn.collector.Collector("MountainCar-v0", **options)
    weights = dqn.model.Learner(2, 3, seed=0, **dqn.training.SETTINGS).weights()
    assert collector.collect(weights, 1.0, 0, 1) == [-200.0, -200.0]
    frames = storage[:]
    assert np.flatnonzero(frames["next", "done"].numpy()).tolist() == [199, 399]
    assert not frames["next", "terminated"].any()
    collector.close()


def test_exploration(dqn: SimpleNamespace) -> None:
    weights = [
        (np.zeros((8, 4), np.float32), np.zeros(8, np.float32)),
        (np.zeros((2, 8), np.float32), np.array([0, 1], np.float32)),
    ]
    for epsilon, share in ((0.0, 1.0), (0.5, 0.75), (1.0, 0.5)):
        storage = dqn.replay_buffer.CostlyLocalStorage(10_000)
        options = {"num_envs": 10, "frames": 4000, "writers": [storage], "seed": 0, "number": 0}
        collector = dqn.collector.Collector("CartPole-v1", **options)
        collector.collect(weights, epsilon, 0, 1)
        assert storage[:]["action"].float().mean() == pytest.approx(share, abs=0.03)
        collector.close()


def test_collections_go_to_shards_in_turn(dqn: SimpleNamespace) -> None:
    storages = [dqn.replay_buffer.CostlyLocalStorage(1000) for _ in range(3)]
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


def test_work_and_waiting_are_done_for_every_row(dqn: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(dqn.replay_buffer, "work", lambda rounds: done.append(rounds))
    monkeypatch.setattr(dqn.replay_buffer.time, "sleep", lambda seconds: done.append(("slept", seconds)))
    storage = dqn.replay_buffer.CostlyLocalStorage(10)
    storage.append({"a": np.arange(4)})
    shard = dqn.replay_buffer.ReplayShard(storage, 0)
    shard.sample(3, seed=0)
    assert done == []
    storage.sample_work, storage.sample_wait = 7, 2.5
    shard.sample(3, seed=0)
    assert done == [7, 7, 7, ("slept", 0.0075)]
    done.clear()
    storage.get(1)
    assert done == [7, ("slept", 0.0025)]
    monkeypatch.undo()
    assert [dqn.replay_buffer.work(rounds) for rounds in range(3)] == [0, 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_sampling_before_there_is_data(dqn: SimpleNamespace) -> None:
    with Runner("empty", engine="inline") as rr:
        shard = rr.service(dqn.replay_buffer.ReplayShard(dqn.replay_buffer.CostlyObjectStorage(rr, 5), 2))
        with pytest.raises(ReplayEmpty, match=r"replay shard 2 holds no frames yet. Collect some"):
            rr.get(shard.sample(3, 0))
    with pytest.raises(ReplayEmpty, match="none of 2 replay shards holds a frame yet"):
        dqn.replay_buffer.SamplingPlan(8, 1).next([0, 0])


def test_shards_of_one_size_have_their_turns(dqn: SimpleNamespace) -> None:
    plan = dqn.replay_buffer.SamplingPlan(64, 2)
    assert [plan.next([100] * 4) for _ in range(4)] == [[(0, 32), (1, 32)], [(2, 32), (3, 32)]] * 2
    plan = dqn.replay_buffer.SamplingPlan(64, 3)
    assert [sum(num for _, num in plan.next([100] * 3)) for _ in range(3)] == [64] * 3
    plan = dqn.replay_buffer.SamplingPlan(10, 1)
    assert [plan.next([0, 5, 0, 5])[0].shard for _ in range(4)] == [1, 3, 1, 3], "empty ones are passed over"
    assert dqn.replay_buffer.shard_sizes(11, 4) == [3, 3, 3, 2]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_every_frame_of_uneven_shards_is_equally_likely(parallelism: int, dqn: SimpleNamespace) -> None:
    """Also after the shards have wrapped around."""
    buffer, capacities, first = dqn.replay_buffer, (50, 7, 120), 0
    with Runner("uniform", engine="inline") as rr:
        shards, alive = [], []
        for number, capacity in enumerate(capacities):
            storage = buffer.CostlyObjectStorage(rr, capacity)
            for size in (3, 40, 1, 70, 11, 9)[: 6 if number != 2 else 3]:  # the last is not full
                storage.append({"number": np.arange(first, first := first + size)})
            alive += storage[:]["number"].tolist()
            shards.append(buffer.ReplayShard(storage, number))
        sizes = [shard.size() for shard in shards]
        assert sizes == [50, 7, 44]
        plan, counts, total = buffer.SamplingPlan(61, parallelism), dict.fromkeys(alive, 0), 0
        for step in range(2000):
            for part, (shard, num) in enumerate(plan.next(sizes)):
                for number in shards[shard].sample(num, seed=parallelism * step + part)["number",].tolist():
                    counts[number] += 1
                    total += 1
    assert total == 61 * 2000
    expected = total / len(alive)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(alive) == 101
    assert 53 < statistic < 161, "the 0.01 % and 99.99 % points of χ² with 100 degrees of freedom, about"


def test_a_sample_is_that_of_its_seed(dqn: SimpleNamespace) -> None:
    storage = dqn.replay_buffer.CostlyLocalStorage(100)
    storage.append({"number": np.arange(100)})
    one, other = (dqn.replay_buffer.ReplayShard(storage, number) for number in range(2))
    torch.manual_seed(0)
    first = one.sample(20, seed=5)["number",].tolist()
    torch.manual_seed(1)
    assert other.sample(20, seed=6)["number",].tolist() != first
    assert other.sample(20, seed=5)["number",].tolist() == first


def test_warming_up_leaves_the_learner_as_it_was(dqn: SimpleNamespace) -> None:
    warm, cold = (dqn.model.Learner(4, 2, seed=0, **dqn.training.SETTINGS) for _ in range(2))
    warm.warm_up(8)
    random = np.random.default_rng(0)
    batch = {
        ("observation",): random.standard_normal((8, 4)).astype(np.float32),
        ("action",): random.integers(0, 2, 8),
        ("next", "observation"): random.standard_normal((8, 4)).astype(np.float32),
        ("next", "reward"): np.ones((8, 1), np.float32),
        ("next", "terminated"): np.zeros((8, 1), bool),
        ("next", "done"): np.zeros((8, 1), bool),
    }
    parts = [{path: column[:3] for path, column in batch.items()}, {path: column[3:] for path, column in batch.items()}]
    before = [weight.copy() for layer in cold.weights() for weight in layer]
    found = [[learner.update(parts) for _ in range(5)] for learner in (warm, cold)]
    assert found[0] == found[1]
    assert len(set(found[0])) == 5
    after = [weight for layer in cold.weights() for weight in layer]
    assert not any(np.array_equal(a, b) for a, b in zip(before, after, strict=True)), "collectors see what was learned"


def test_it_says_what_it_needs_and_what_it_takes(dqn: SimpleNamespace) -> None:
    project = tomllib.loads((DQN / "pyproject.toml").read_text())["project"]
    needed = {re.split("[<>=]", line)[0] for line in project["dependencies"]}
    assert needed == {"raceway[torchrl]", "torch", "torchrl", "tensordict", "gymnasium"}
    assert project["optional-dependencies"]["box2d"] == ["gymnasium[box2d]"]
    page = (DQN / "README.md").read_text()
    options = {name for name in vars(dqn.main.parse_args([])) if name not in ("obs_dim", "num_actions")}
    assert set(re.findall(r"\n\| `--([a-z-]+)` \|", page)) == {name.replace("_", "-") for name in options}
    shown = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert textwrap.indent(shown.group(1), "    " * 2) in (DQN / "training.py").read_text()
