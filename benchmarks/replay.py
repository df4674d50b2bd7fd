"""Replay compared with TorchRL's, parallel sampling, and memory for frames.

python benchmarks/replay.py [--seconds 1] [--blocks 5] [--only NAME ...]

Sides alternate in short blocks. The plain program is what people write with TorchRL: one environment, one forward pass
per step, the library's own buffer and loss.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch
from _harness import Report
from rollouts import Side, rates, ratio

from raceway.engine import make_engine
from raceway.machine import worker_compute_settings
from raceway.ops import ReplaySettings, ReplayShard, StoreToReplay, parallel_replay
from raceway.replay import Replay, SumTree
from raceway.replay.frame_storage import FrameStorage

EXAMPLE = Path(__file__).parents[1] / "examples" / "torchrl_dqn" / "main.py"
ROWS, CAPACITY = 256, 100_000


def cartpole_rows(num: int) -> dict[str, np.ndarray]:
    """Make transitions of CartPole's size."""
    random = np.random.default_rng(0)
    return {
        "obs": random.standard_normal((num, 4), np.float32),
        "action": random.integers(0, 2, num),
        "reward": np.ones(num, np.float32),
        "discount": np.full(num, 0.99, np.float32),
        "next_obs": random.standard_normal((num, 4), np.float32),
    }


def torchrl_buffer(prioritised: bool) -> tuple[Any, Any]:
    """Return a full TorchRL buffer and a batch for it."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

    rows = {name: torch.from_numpy(column) for name, column in cartpole_rows(ROWS).items()}
    batch = TensorDict(
        {
            "observation": rows["obs"],
            "action": rows["action"],
            "next": {
                "observation": rows["next_obs"],
                "reward": rows["reward"].unsqueeze(-1),
                "terminated": torch.zeros(ROWS, 1, dtype=torch.bool),
                "done": torch.zeros(ROWS, 1, dtype=torch.bool),
            },
        },
        [ROWS],
    )
    storage = LazyTensorStorage(CAPACITY)
    if prioritised:
        buffer: Any = TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, priority_key="td_error", storage=storage, batch_size=ROWS
        )
    else:
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=ROWS)
    for _ in range(-(-CAPACITY // ROWS)):
        buffer.extend(batch)
    return buffer, batch


def has_trees() -> bool:
    """Whether TorchRL's C++ extension loads: it is built for one version of torch, and prioritised buffers need it."""
    from torchrl.data.replay_buffers import samplers

    return samplers.SumSegmentTreeFp32 is not None


def kinds() -> list[bool]:
    """Return which buffers can be compared: uniform (False) and prioritised (True)."""
    if not has_trees():
        print(f"TorchRL's extension does not load with torch {torch.__version__}: prioritised buffers are not compared")
        return [False]
    return [False, True]


def buffer_sides(prioritised: bool) -> dict[str, dict[str, Side]]:
    """Return both sides of inserting, and of sampling (with a priority update if prioritised)."""
    theirs, their_batch = torchrl_buffer(prioritised)
    ours, our_batch = Replay(CAPACITY, alpha=0.6 if prioritised else None), cartpole_rows(ROWS)
    for _ in range(-(-CAPACITY // ROWS)):
        ours.insert(our_batch)
    priorities = np.random.default_rng(1).random(ROWS).astype(np.float32)
    tensor = torch.from_numpy(priorities)

    def insert_theirs() -> int:
        theirs.extend(their_batch)
        return 1

    def insert_ours() -> int:
        ours.insert(our_batch)
        return 1

    def sample_theirs() -> int:
        batch = theirs.sample()
        if prioritised:
            theirs.update_priority(batch["index"], tensor)
        return 1

    def sample_ours() -> int:
        batch = ours.sample(ROWS)
        if prioritised:
            ours.update(batch["index"], priorities)
        return 1

    return {
        "insert": {"ours": insert_ours, "theirs": insert_theirs},
        "sample" + (", then update priorities" if prioritised else ""): {"ours": sample_ours, "theirs": sample_theirs},
    }


def in_process(report: Report, blocks: int, length: float) -> None:
    """Compare with TorchRL's buffers in one process."""
    with worker_compute_settings():
        for prioritised in kinds():
            for what, sides in buffer_sides(prioritised).items():
                measured = rates(sides, blocks, length)
                report.row(
                    f"{'prioritised' if prioritised else 'uniform'}, {what} of {ROWS}: Raceway / TorchRL, one process",
                    "at least 1",
                    ratio(measured, "ours", "theirs") >= 1,
                    ratio=ratio(measured, "ours", "theirs"),
                    per_s=statistics.median(measured["ours"]),
                )


def through_an_actor(report: Report, blocks: int, length: float) -> None:
    """Compare a replay shard on an actor with TorchRL's buffers in this process."""
    for prioritised in kinds():
        theirs = buffer_sides(prioritised)
        with make_engine("process") as engine, worker_compute_settings():
            settings = ReplaySettings(capacity=CAPACITY, batch_size=ROWS, alpha=0.6 if prioritised else None)
            shard = engine.spawn(ReplayShard, (settings,))
            store, batch = StoreToReplay([shard]), cartpole_rows(ROWS)
            for _ in range(-(-CAPACITY // ROWS)):
                store(batch)
            shard.call("counts").result()
            run = parallel_replay([shard], num_async=2).start()
            priorities = np.random.default_rng(1).random(ROWS)

            def insert(store: StoreToReplay = store, batch: Any = batch, shard: Any = shard) -> int:
                for _ in range(20):
                    store(batch)
                shard.call("counts").result()  # returns when all batches are inserted
                return 20

            def sample(
                run: Any = run, shard: Any = shard, priorities: Any = priorities, update: bool = prioritised
            ) -> int:
                batch = next(run)
                if update:
                    shard.call("update", batch["index"], priorities)
                return 1

            for (what, sides), side in zip(theirs.items(), (insert, sample), strict=True):
                measured = rates({"ours": side, "theirs": sides["theirs"]}, blocks, length)
                report.row(
                    f"{'prioritised' if prioritised else 'uniform'}, {what} of {ROWS}: through a shard actor / TorchRL",
                    "at least 0.5",
                    ratio(measured, "ours", "theirs") >= 0.5,
                    ratio=ratio(measured, "ours", "theirs"),
                    per_s=statistics.median(measured["ours"]),
                )
            run.close()


def sum_trees(report: Report, blocks: int, length: float) -> None:
    """Compare the sum trees: TorchRL's binary tree in C++ and the wide tree in numpy."""
    if not has_trees():
        return
    from torchrl.data.replay_buffers.samplers import SumSegmentTreeFp32

    random = np.random.default_rng(0)

    def in_numpy(tree: SumTree, places: Any, new: Any) -> int:
        tree.put(places, new)
        tree.find(random.random(ROWS) * tree.total)
        return 1

    def in_torchrl(tree: Any, places: Any, new: Any, size: int) -> int:
        tree[places] = new
        tree.scan_lower_bound(torch.rand(ROWS) * tree.query(0, size))
        return 1

    for size in (100_000, 1_000_000):
        ours, theirs = SumTree(size), SumSegmentTreeFp32(size)
        values = random.random(size).astype(np.float32)
        ours.put(np.arange(size), values)
        theirs[torch.arange(size)] = torch.from_numpy(values)
        places, new = random.integers(0, size, ROWS), random.random(ROWS).astype(np.float32)
        sides: dict[str, Side] = {
            "numpy": partial(in_numpy, ours, places, new),
            "TorchRL": partial(in_torchrl, theirs, torch.from_numpy(places), torch.from_numpy(new), size),
        }
        measured = rates(sides, blocks, length)
        report.row(
            f"sum tree, {size:,} values, {ROWS} updated and {ROWS} searched: numpy / TorchRL's C++",
            "which is faster",
            True,
            ratio=ratio(measured, "numpy", "TorchRL"),
            us=1e6 / statistics.median(measured["numpy"]),
        )


def atari(report: Report, blocks: int, length: float) -> None:
    """Fill replay with a million transitions of four stacked frames and measure the memory of the process."""
    total, part = 1_000_000, 1000
    before = psutil.Process().memory_info().rss
    replay = Replay(total, stacked=True)
    random = np.random.default_rng(0)
    start = time.perf_counter()
    last = random.integers(0, 256, (4, 84, 84), np.uint8)
    noise = random.integers(0, 256, (64, 84, 84), np.uint8)
    for number in range(0, total, part):
        new = noise[np.arange(part) % len(noise)]
        numbers = np.arange(number, number + part)[:, None] >> np.arange(0, 64, 8)
        new[:, 0, :8] = numbers.astype(np.uint8)  # so that all frames differ
        film = np.concatenate([last, new])
        stacks = np.lib.stride_tricks.sliding_window_view(film, 4, axis=0).transpose(0, 3, 1, 2)
        replay.insert(
            {
                "obs": stacks[:-1],
                "next_obs": stacks[1:],
                "action": np.zeros(part, np.uint8),
                "reward": np.zeros(part, np.float32),
                "discount": np.ones(part, np.float32),
            }
        )
        last = film[-4:]
    seconds = time.perf_counter() - start
    assert isinstance(replay.storage, FrameStorage)
    batch = replay.sample(32)
    assert (batch["obs"][:, 1:] == batch["next_obs"][:, :-1]).all()
    gib = (psutil.Process().memory_info().rss - before) / 2**30
    report.row(
        "1,000,000 transitions of 4 x 84 x 84, frames stored once: memory",
        "at most 8 GiB",
        gib <= 8 and len(replay) == total,
        gib=gib,
        frames=replay.storage.frames.next,
        inserts_per_s=total / seconds,
    )


def run_example(*options: str) -> dict[str, Any]:
    """Run the example and return its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.json"
        command = [sys.executable, str(EXAMPLE), *options, "--metrics-json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
        metrics: dict[str, Any] = json.loads(path.read_text())
        return metrics


def phases(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of every phase."""
    return {name: phase["total"] for name, phase in metrics["summary"]["timing"].items()}


def parallel_sampling(report: Report, blocks: int, length: float) -> None:
    """Run the example with parallelism 1 and 4, with sampling work that computes and that waits.

    The ratio is the median over pairs of runs. Beside it are the ratio of the best runs, and that of four bare
    processes with the same work in the same minutes: shared cores may be worth less than two.
    """
    common = ("--replay", "sharded", "--replay-shards", "4")
    for what, work, bar, times in (
        ("computes", ("--sample-work", "4096"), 1.8, 11),
        ("waits", ("--sample-wait", "5"), 3.7, 5),
    ):
        runs: list[dict[str, dict[str, float]]] = []
        bare: list[tuple[float, float]] = []
        for _ in range(times):
            runs.append({num: phases(run_example(*common, *work, "--sample-parallelism", num)) for num in ("1", "4")})
            bare += four_bare_processes() if what == "computes" else []
        sample, collect = (
            median_and_best([(run["1"][phase], run["4"][phase]) for run in runs]) for phase in ("sample", "collect")
        )
        more = dict(zip(("four_bare_processes", "their_best"), median_and_best(bare), strict=True)) if bare else {}
        report.row(
            f"sampling that {what}, 4 shards, parallelism 4 / 1: sample phase",
            f"at least {bar}",
            sample[0] >= bar,
            ratio=sample[0],
            best=sample[1],
            collect_ratio=collect[0],
            **more,
        )


def median_and_best(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return first / second of many pairs of durations: the median ratio, and the ratio of the shortest ones."""
    firsts, seconds = zip(*pairs, strict=True)
    return statistics.median(first / second for first, second in pairs), min(firsts) / min(seconds)


BARE = """
{work}
import sys
for line in sys.stdin:
    for _ in range(int(line)):
        work(4096)
    print(flush=True)
"""


def four_bare_processes(batch: int = 64, times: int = 1) -> list[tuple[float, float]]:
    """Return the durations of the work of twenty batches in one bare process and in four."""
    sys.path.insert(0, str(EXAMPLE.parent))
    from replay_buffer import work

    program, pipes = BARE.format(work=inspect.getsource(work)), {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        command = [sys.executable, "-c", program]
        processes: list[Any] = [
            stack.enter_context(subprocess.Popen(command, text=True, **pipes))  # type: ignore[call-overload]
            for _ in range(4)
        ]

        def duration(workers: list[Any]) -> float:
            start = time.perf_counter()
            for worker in workers:
                print(batch // len(workers), file=worker.stdin, flush=True)
            for worker in workers:
                worker.stdout.readline()
            return time.perf_counter() - start

        duration(processes)
        durations = [
            (sum(duration(processes[:1]) for _ in range(20)), sum(duration(processes) for _ in range(20)))
            for _ in range(times)
        ]
        for worker in processes:
            worker.stdin.close()
    return durations


def cheap_sampling(report: Report, blocks: int, length: float) -> None:
    """Sample cheap batches from one shard, and from four in parallel: here sharding does not pay."""
    few, many = [], []
    for _ in range(3):
        few.append(phases(run_example("--replay", "sharded", "--replay-shards", "1", "--optim-steps", "10"))["sample"])
        four = ("--replay", "sharded", "--replay-shards", "4", "--sample-parallelism", "4", "--optim-steps", "10")
        many.append(phases(run_example(*four))["sample"])
    report.row(
        "cheap sampling: sample phase with 4 shards at once / with one shard",
        "reported",
        True,
        ratio=statistics.median(many) / statistics.median(few),
        one_shard_s=statistics.median(few),
        four_shards_s=statistics.median(many),
    )


def plain_program(iterations: int = 20) -> float:
    """Train with the plain program and return frames per second."""
    import tensordict.nn
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, OneHot, TensorDictReplayBuffer
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    env = gym.make("CartPole-v1")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2))
    module = tensordict.nn.TensorDictModule(network, in_keys=["observation"], out_keys=["action_value"])
    actor = QValueActor(module, spec=OneHot(2), in_keys=["observation"])
    loss_module = DQNLoss(actor, action_space="one-hot", delay_value=True)
    loss_module.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss_module, tau=0.05)
    optimiser = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=64)
    random = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    start, frames = time.perf_counter(), 0
    for iteration in range(iterations):
        epsilon = 0.2 - 0.18 * iteration / (iterations - 1)
        for _ in range(4):
            transitions = []
            for _ in range(100):
                state = torch.from_numpy(obs)
                if random.random() < epsilon:
                    action = torch.nn.functional.one_hot(torch.tensor(int(random.integers(2))), 2)
                else:
                    with torch.no_grad():
                        action = actor(TensorDict({"observation": state}, []))["action"]
                next_obs, reward, terminated, truncated, _ = env.step(int(action.argmax()))
                transitions.append(
                    TensorDict(
                        {
                            "observation": state,
                            "action": action,
                            "next": {
                                "observation": torch.from_numpy(next_obs),
                                "reward": torch.tensor([float(reward)]),
                                "terminated": torch.tensor([terminated]),
                                "done": torch.tensor([terminated or truncated]),
                            },
                        },
                        [],
                    )
                )
                obs = env.reset()[0] if terminated or truncated else next_obs
                frames += 1
            buffer.extend(torch.stack(transitions))
        loss = loss_module(buffer.sample())["loss"]
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 10.0)
        optimiser.step()
        updater.step()
    return frames / (time.perf_counter() - start)


def whole_program(report: Report, blocks: int, length: float) -> None:
    """Compare frames per second of the example with the plain program's."""
    plain_program(2)
    measured: dict[str, list[float]] = {"plain": [], "one": [], "vector": []}
    for _ in range(blocks):
        measured["plain"].append(plain_program())
        for name, options in (("one", ()), ("vector", ("--num-envs", "25"))):
            measured[name].append(run_example(*options)["summary"]["frames_per_second"])
    for name, what, bar in (
        ("vector", "25 environments per collector", 5),
        ("one", "one environment per collector", 1),
    ):
        report.row(
            f"frames/s of the example with {what} / the plain program",
            f"at least {bar}",
            ratio(measured, name, "plain") >= bar,
            ratio=ratio(measured, name, "plain"),
            frames_per_s=statistics.median(measured[name]),
            plain_per_s=statistics.median(measured["plain"]),
        )


PARTS: dict[str, Callable[[Report, int, float], None]] = {
    "process": in_process,
    "actor": through_an_actor,
    "trees": sum_trees,
    "sampling": parallel_sampling,
    "cheap": cheap_sampling,
    "program": whole_program,
    "atari": atari,
}


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a block")
    parser.add_argument("--blocks", type=int, default=5, help="blocks per side")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="only these comparisons")
    options = parser.parse_args()
    report = Report("replay")
    for name, part in PARTS.items():
        if options.only is None or name in options.only:
            part(report, options.blocks, options.seconds)
    report.write(keep=options.only is not None)


if __name__ == "__main__":
    main()
