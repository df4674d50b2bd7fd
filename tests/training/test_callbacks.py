"""Callbacks of a training: when they are called, how they stop it, what their errors leave, and metrics of episodes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.cli import main
from raceway.errors import CallbackError
from raceway.runs.metrics_file import read_metrics
from raceway.runs.reader import read_run
from raceway.training.train import resume, train
from raceway.ui.callback import Callback
from tests.conftest import GENEROUS
from tests.info_envs import Goal
from tests.training.saved_runs import ASYNCHRONOUS, SYNCHRONOUS, assert_same_state, last_checkpoint, settings_of

PPO: dict[str, Any] = {
    "env": "cartpole", "num_envs": 4, "num_shards": 2, "fragment_steps": 16, "num_minibatches": 2, "num_epochs": 1,
    "hidden": (8,), "seed": 1, "progress": False,
}  # fmt: skip
INLINE, PROCESS = {"engine": "inline"}, {"engine": "process", "num_workers": 2}
engines = pytest.mark.parametrize("engine", [INLINE, PROCESS], ids=["inline", "process"])


@pytest.fixture(autouse=True)
def _run_in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Recording(Callback):
    """Records which of its methods are called, with the steps of the run."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __enter__(self) -> "Recording":
        self.calls.append(("enter",))
        return self

    def on_train_start(self, run: Any) -> None:
        self.calls.append(("start", run.timesteps, run.resumed_at))
        self.config = run.config
        assert run.directory == Path("run")

    def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> None:
        assert metrics["time/total_timesteps"] == run.timesteps
        assert metrics["rollout/ep_rew_mean"] == run.mean_return
        self.calls.append(("iteration", run.iterations))

    def on_evaluation_end(self, run: Any, metrics: dict[str, Any]) -> None:
        assert metrics["eval/mean_reward"] > 0
        self.calls.append(("evaluation", metrics["time/iterations"]))

    def on_metrics_row(self, run: Any, row: dict[str, Any]) -> None:
        self.calls.append(("row", row["time/iterations"], "eval/mean_reward" in row))

    def on_checkpoint(self, run: Any, path: Path) -> None:
        assert any(path.iterdir())
        self.calls.append(("checkpoint", int(path.name)))

    def on_train_end(self, run: Any, summary: dict[str, Any]) -> None:
        self.calls.append(("end", summary["stopped_by"]))

    def __exit__(self, kind: Any, *_: object) -> None:
        self.calls.append(("exit", kind))


@engines
def test_the_order_of_calls(engine: dict[str, Any]) -> None:
    callback = Recording()
    settings = {**PPO, **engine, "metrics_interval": 0, "save_every": 128, "save_seconds": 0, "eval_every": 128}
    train("ppo", **settings, eval_episodes=1, iterations=3, run_dir="run", callbacks=[callback])
    calls = [call for call in callback.calls if call[0] != "checkpoint"]
    assert calls == [
        ("enter",), ("start", 0, None), ("row", 1, False), ("iteration", 1), ("row", 2, True), ("evaluation", 2),
        ("iteration", 2), ("row", 3, False), ("iteration", 3), ("end", "iterations"), ("exit", None),
    ]  # fmt: skip
    assert {("checkpoint", 128), ("checkpoint", 192)} <= set(callback.calls)
    assert callback.calls.index(("checkpoint", 128)) == callback.calls.index(("iteration", 2)) + 1
    assert (callback.config["seed"], callback.config["hidden"]) == (1, [8])
    again = Recording()
    resume("run", iterations=4, callbacks=[again], progress=False)
    assert again.calls[:2] == [("enter",), ("start", 0, 192)]
    assert ("iteration", 4) in again.calls


def test_rows_are_as_few_as_in_the_file_and_complete() -> None:
    class Rows(Callback):
        rows: list[dict[str, Any]] = []  # noqa: RUF012

        def on_metrics_row(self, run: Any, row: dict[str, Any]) -> None:
            self.rows.append(row)

    train("ppo", **PPO, **INLINE, iterations=9, metrics_interval=1e9, run_dir="run", callbacks=[Rows()])
    assert json.loads(json.dumps(Rows.rows)) == read_metrics("run")
    assert sum(row["time/row_iterations"] for row in Rows.rows) == 9
    assert len(Rows.rows) < 9


def test_an_overdue_evaluation_is_notified_without_an_iteration() -> None:
    settings = {**PPO, **INLINE, "metrics_interval": 0, "eval_episodes": 1}
    train("ppo", **settings, iterations=2, run_dir="run")
    callback = Recording()
    resume("run", eval_every=128, callbacks=[callback], progress=False)
    assert [call for call in callback.calls if call[0] in ("row", "evaluation", "iteration")] == [
        ("row", 2, True),
        ("evaluation", 2),
    ]


class StopAt(Callback):
    """Ends the run after an iteration."""

    def __init__(self, iteration: int, answer: Any = False) -> None:
        self.iteration, self.answer, self.seen = iteration, answer, list[int]()

    def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> Any:
        self.seen.append(run.iterations)
        return self.answer if run.iterations == self.iteration else None


@engines
@pytest.mark.parametrize("answer", [False, np.bool_(False)])
def test_returning_false_ends_the_run_which_can_be_resumed(engine: dict[str, Any], answer: Any) -> None:
    other = StopAt(99)
    result = train("ppo", **PPO, **engine, iterations=6, run_dir="run", callbacks=[StopAt(3, answer), other])
    assert result.summary["stopped_by"] == "callback StopAt"
    assert (result.summary["iterations"], result.summary["timesteps"]) == (3, 192)
    assert other.seen == [1, 2, 3], "all callbacks see the last iteration"
    assert last_checkpoint("run").about["iterations"] == 3
    assert read_run("run").status == "finished"
    resume("run", progress=False)
    train("ppo", **PPO, **INLINE, iterations=6, run_dir="whole")
    assert_same_state("run", "whole")


@pytest.mark.parametrize("answer", [None, 0, True, "", []])
def test_only_false_ends_a_run(answer: Any) -> None:
    result = train("ppo", **PPO, **INLINE, iterations=2, run_dir="run", callbacks=[StopAt(1, answer)])
    assert result.summary["stopped_by"] == "iterations"


class RaiseIn(Callback):
    """Raises in one of its methods, in the second iteration where it is called after each."""

    def __init__(self, method: str) -> None:
        self.method = method

        def fail(run: Any, *_: Any) -> None:
            if run.iterations in (0, 2):
                raise KeyError("the culprit")

        setattr(self, method, fail)


AT_ITERATION = ["on_iteration_end", "on_evaluation_end", "on_metrics_row", "on_checkpoint"]


@engines
@pytest.mark.parametrize("method", AT_ITERATION)
def test_an_error_names_the_callback_and_the_run_is_saved(method: str, engine: dict[str, Any]) -> None:
    settings = {**PPO, "metrics_interval": 0, "eval_every": 128, "eval_episodes": 1, "iterations": 4}
    with pytest.raises(CallbackError) as caught:
        train("ppo", **settings, **engine, save_every=128, run_dir="run", callbacks=[RaiseIn(method)])
    error = caught.value
    assert (error.callback, error.method) == ("RaiseIn", method)
    assert str(error).startswith(f"callback RaiseIn.{method} raised KeyError: 'the culprit'\n\nTraceback")
    assert "raise KeyError(" in str(error)
    assert "callback_list.py" not in str(error)
    assert error.frames is not None
    assert error.frames.tb_frame.f_code.co_name == "fail"
    assert "raceway resume run" in error.__notes__[0]
    run = read_run("run")
    assert run.status == "crashed"
    assert run.error == f"CallbackError: callback RaiseIn.{method} raised KeyError: 'the culprit'"
    assert last_checkpoint("run").about["iterations"] == 2
    resume("run", progress=False)
    train("ppo", **settings, **INLINE, save_every=128, run_dir="whole")
    assert_same_state("run", "whole")
    assert read_run("run").status == "finished"


def test_an_error_at_the_end_is_raised_after_all_callbacks_were_notified() -> None:
    other = Recording()
    with pytest.raises(CallbackError, match=r"RaiseIn\.on_train_end raised KeyError"):
        train("ppo", **PPO, **INLINE, iterations=2, run_dir="run", callbacks=[RaiseIn("on_train_end"), other])
    assert ("end", "iterations") in other.calls
    assert other.calls[-1] == ("exit", CallbackError)
    assert read_run("run").status == "finished", "nothing of the training is lost"


class KillWorker(Callback):
    """Kills a worker after the second iteration, and records restarts."""

    def __init__(self) -> None:
        self.restarted: list[tuple[int, str]] = []

    def on_train_start(self, run: Any) -> None:
        spawn = run.training._spawn

        def spawn_and_record(engine: Any) -> Any:
            self.workers = spawn(engine)
            return self.workers

        run.training._spawn = spawn_and_record

    def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> None:
        if run.iterations == 2:
            os.kill(self.workers[1].call("pid").result(GENEROUS), signal.SIGKILL)

    def on_worker_restart(self, run: Any, worker: str) -> None:
        self.restarted.append((run.iterations, worker))


@pytest.mark.parametrize("name", ["ppo cartpole", "maml point"])
def test_a_worker_that_is_killed_and_restarted_is_notified(name: str) -> None:
    """MAML has its own failure policy."""
    algorithm, settings = settings_of(name)
    callback = KillWorker()
    train(algorithm, **settings, **PROCESS, iterations=4, run_dir="run", callbacks=[callback], progress=False)
    assert callback.restarted == [(3, "rollouts-1")]


def test_the_policy_of_a_run_is_a_copy() -> None:
    class Policies(Callback):
        def __init__(self) -> None:
            self.policies: list[Any] = []

        def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> None:
            policy = run.policy
            assert policy.act(np.zeros(4, np.float32)) in (0, 1)
            assert policy.about["steps"] == run.timesteps
            self.policies.append(policy)
            for weights in run.policy.weights().values():
                weights[...] = 0  # of another copy

    callback = Policies()
    result = train("ppo", **PPO, **INLINE, iterations=3, run_dir="run", callbacks=[callback])
    plain = train("ppo", **PPO, **INLINE, iterations=3, run_dir="plain")
    assert result.summary["weights_sha256"] == plain.summary["weights_sha256"]
    hashes = [policy.sha256() for policy in callback.policies]
    assert len(set(hashes)) == 3
    assert hashes[-1] == result.summary["weights_sha256"]


def test_the_policy_of_a_remote_learner_is_what_it_has_published() -> None:
    """The learner takes gradient steps meanwhile, so an iteration may have the weights of a later one."""

    class Hashes(Callback):
        hashes: set[str] = set()  # noqa: RUF012

        def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> None:
            self.hashes.add(run.policy.sha256())

    settings = {**ASYNCHRONOUS["impala"], **INLINE, "learner_on": "thread", "iterations": 9, "progress": False}
    result = train("impala", env="cartpole", **settings, run_dir="run", callbacks=[Hashes()])
    assert len(Hashes.hashes) >= 2
    assert result.summary["iterations"] == 9


# Metrics of episodes.


class Report(Callback):
    """Reports ten times the return of each episode, and fails for some lengths."""

    def __init__(self, failing: tuple[int, ...] = ()) -> None:
        self.failing, self.num_calls = failing, 0

    def on_episode_end(self, info: dict[str, Any]) -> dict[str, float]:
        self.num_calls += 1
        assert info["label"] in ("over", "quiet")
        if info["episode"]["l"] in self.failing:
            raise RuntimeError("too short")
        return {"tenfold": 10 * info["episode"]["r"]}


GOAL: dict[str, Any] = {**PPO, "env": Goal, "info_keys": ("distance", "nothing"), "iterations": 4}


def expected_metrics(returns: list[float], before: list[float]) -> dict[str, Any]:
    """Return the metrics of episodes whose returns are their lengths; see `Goal`."""
    window = np.array([*before, *returns][-100:])
    metrics: dict[str, Any] = {"rollout/success_rate": float((window % 2).mean())}
    if returns:
        tenfold = 10 * np.array(returns)
        metrics |= {"env/distance_mean": tenfold.mean(), "episode/tenfold": tenfold.mean()}
        metrics |= {"env/distance_min": tenfold.min(), "env/distance_max": tenfold.max()}
        metrics["counts"] = {"env/distance_mean": len(returns), "episode/tenfold": len(returns)}
    return metrics


def check_rows(rows: list[dict[str, Any]]) -> None:
    """Check the metrics of episodes in rows by the returns in them."""
    before: list[float] = []
    for row in rows:
        expected = expected_metrics(row["returns"], before)
        written = {name: row[name] for name in row if name.startswith(("env/", "episode/"))}
        assert written == pytest.approx({n: v for n, v in expected.items() if n.startswith(("env/", "episode/"))})
        assert row["rollout/success_rate"] == pytest.approx(expected["rollout/success_rate"])
        counts = {name: count for name, count in row.get("counts", {}).items() if "/" in name and name in expected}
        assert counts == expected.get("counts", {})
        before += row["returns"]
    assert len(before) > 100


@engines
@pytest.mark.parametrize("interval", [0, 1e9])
def test_metrics_of_episodes_are_exact(
    interval: float, engine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Also in rows that all iterations share, and over a resume. What is never there is said at the end."""
    callback = Report()
    settings = {**GOAL, "iterations": 12, "metrics_interval": interval}
    result = train("ppo", **settings, **engine, run_dir="whole", callbacks=[callback])
    check_rows(result.metrics)
    assert callback.num_calls == 0, "workers have copies"
    assert result.summary["success_rate"] == result.metrics[-1]["rollout/success_rate"]
    assert result.summary["missing_info_keys"] == ["nothing"]
    assert sum("no episode's last info had 'nothing'" in message for message in caplog.messages) == 1
    train("ppo", **{**settings, "iterations": 5}, **engine, run_dir="parts", callbacks=[Report()])
    parts = resume("parts", iterations=12, env=Goal, callbacks=[Report()], progress=False)
    check_rows(parts.metrics)
    assert parts.summary["success_rate"] == result.summary["success_rate"]
    assert parts.returns == result.returns
    assert_same_state("whole", "parts")
    without = {**settings, "info_keys": ()}
    plain = train("ppo", **without, **INLINE, run_dir="plain")
    assert plain.summary["weights_sha256"] == result.summary["weights_sha256"]


@pytest.mark.parametrize("name", [*sorted({name.split()[0] for name in SYNCHRONOUS} - {"maml"}), *ASYNCHRONOUS])
def test_every_algorithm_reports_metrics_of_episodes(name: str) -> None:
    """MAML needs an environment with tasks."""
    settings = ASYNCHRONOUS.get(name) or SYNCHRONOUS[f"{name} cartpole"]
    options = {**settings, "env": Goal, "info_keys": ("distance",), "metrics_interval": 0, "progress": False}
    result = train(name, **options, **INLINE, iterations=40, run_dir="run", callbacks=[Report()])
    check_rows(result.metrics)


@engines
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_an_error_on_a_worker_names_the_callback_and_the_run_is_saved(algorithm: str, engine: dict[str, Any]) -> None:
    """It is raised once: not again by batches that were saved with it, as DQN's of the next iteration."""
    dqn = {"env": Goal, "seed": 1, "iterations": 4, "progress": False, **SYNCHRONOUS["dqn cartpole"]}
    settings = GOAL if algorithm == "ppo" else dqn
    with pytest.raises(
        CallbackError, match=r"callback Report\.on_episode_end raised RuntimeError: too short"
    ) as caught:
        train(algorithm, **settings, **engine, run_dir="run", callbacks=[Report(failing=(2, 3, 4, 5, 6, 7))])
    assert 'raise RuntimeError("too short")' in str(caught.value)
    assert read_run("run").status == "crashed"
    assert last_checkpoint("run").about["iterations"] == 1
    result = resume("run", env=Goal, callbacks=[Report()], progress=False)
    assert result.summary["iterations"] == 4
    plain = train(algorithm, **settings, **INLINE, run_dir="plain")
    assert plain.summary["weights_sha256"] == result.summary["weights_sha256"]


def test_values_that_are_no_numbers_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    settings = {**GOAL, "info_keys": ("label",)}
    result = train("ppo", **settings, **INLINE, run_dir="run")
    text = "info['label'] is of type str, not a finite number: it is left out of the metrics"
    assert caplog.messages.count(text) == 1
    assert result.summary["missing_info_keys"] == [], "it was there"
    assert not any(name.startswith("env/") for row in result.metrics for name in row)
    resume("run", env=Goal, iterations=6, progress=False)
    assert caplog.messages.count(text) == 1


def test_episodes_without_success_are_left_out_of_the_rate() -> None:
    result = train("ppo", **{**GOAL, "env_kwargs": {"quiet": 6}}, **INLINE, run_dir="run")
    lengths = np.array(result.returns[-100:])
    assert result.summary["success_rate"] == pytest.approx((lengths[lengths != 6] % 2).mean())


def test_evaluations_have_a_success_rate(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**GOAL, "metrics_interval": 0, "eval_every": 64, "eval_episodes": 5, "env": "tests.info_envs:Goal-v0"}
    result = train("ppo", **settings, **INLINE, run_dir="run")
    rates = [row["eval/success_rate"] for row in result.metrics]
    assert len(rates) == 4
    evaluation = result.policy.evaluate(20, seed=3)
    assert evaluation.success_rate == pytest.approx((evaluation.lengths % 2).mean())
    assert main(["eval", "run", "--seed", "3", "--trust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["success_rate"] == evaluation.success_rate
    assert main(["eval", "run", "--seed", "3", "--trust"]) == 0
    assert f"success rate {evaluation.success_rate:.1%}" in capsys.readouterr().out


def test_environments_without_infos_have_no_such_metrics() -> None:
    result = train("ppo", **PPO, **INLINE, iterations=6, eval_every=128, eval_episodes=1, run_dir="run")
    assert not any("success" in name or name.startswith("env/") for row in result.metrics for name in row)
    assert (result.summary["success_rate"], result.summary["missing_info_keys"]) == (None, [])


# The command line.

MODULE = """
import raceway
from pathlib import Path

class Stop(raceway.Callback):
    def on_iteration_end(self, run, metrics):
        return run.iterations < 2

class Lengths(raceway.Callback):
    def on_episode_end(self, info):
        return {"length": info["episode"]["l"]}

class Crash(raceway.Callback):
    def on_iteration_end(self, run, metrics):
        raise KeyError("the culprit")
"""
OPTIONS = [
    "--num-envs", "4", "--num-shards", "2", "--fragment-steps", "16", "--num-minibatches", "2", "--num-epochs", "1",
]  # fmt: skip


@pytest.fixture
def callbacks_module(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory, which no other test imports."""
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    name = f"callbacks_{Path.cwd().name.replace('-', '_')}"
    Path(f"{name}.py").write_text(MODULE)
    return name


@pytest.mark.parametrize(
    "engine", [["--local"], ["--engine", "process", "--num-workers", "2"]], ids=["inline", "process"]
)
def test_callbacks_on_the_command_line(
    engine: list[str], callbacks_module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = ["--env", "tests.info_envs:Goal-v0", "--info-keys", "distance,nothing"]
    own = ["--callback", f"{callbacks_module}:Stop", "--callback", f"{callbacks_module}:Lengths"]
    assert main(["train", "ppo", *env, *OPTIONS, *engine, *own, "--iterations", "5", "--run-dir", "run", "--json"]) == 0
    output = capsys.readouterr().out
    summary = json.loads(output.splitlines()[-1])
    assert (summary["stopped_by"], summary["iterations"]) == ("callback Stop", 2)
    assert summary["missing_info_keys"] == ["nothing"]
    row = read_metrics("run")[-1]
    assert row["env/distance_mean"] == pytest.approx(10 * row["episode/length"])
    assert main(["resume", "run", "--trust", "--iterations", "3", *own[2:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["stopped_by"] == "iterations"
    assert "episode/length" in read_metrics("run")[-1]


def test_errors_of_callbacks_on_the_command_line(callbacks_module: str, capsys: pytest.CaptureFixture[str]) -> None:
    train_command = ["train", "ppo", *OPTIONS, "--local", "--iterations", "2", "--run-dir", "run"]
    assert main([*train_command, "--callback", f"{callbacks_module}:Crush"]) == 1
    assert "Did you mean 'Crash'?" in capsys.readouterr().err
    assert not Path("run").exists()
    assert main([*train_command, "--callback", f"{callbacks_module}:Crash"]) == 1
    error = capsys.readouterr().err
    assert "error: callback Crash.on_iteration_end raised KeyError: 'the culprit'" in error
    assert "Resume with: raceway resume run" in error
    assert read_run("run").status == "crashed"


def test_every_seed_has_its_own_callbacks(callbacks_module: str) -> None:
    own = ["--callback", f"{callbacks_module}:Stop"]
    assert (
        main(["train", "ppo", *OPTIONS, "--local", "--seeds", "2", "--iterations", "5", "--run-dir", "runs", *own]) == 0
    )
    summaries = [json.loads(Path(f"runs/seed-{seed}/summary.json").read_text()) for seed in range(2)]
    assert [summary["stopped_by"] for summary in summaries] == ["callback Stop"] * 2
