"""`raceway compare`: tables, JSON, plots and errors."""

import json
import sys
from pathlib import Path

import pytest

from raceway.commands import compare
from raceway.errors import ConfigError
from raceway.runs.statistics import bootstrap_interval
from tests.commands.conftest import Output
from tests.commands.run_seeds import make_seeds, texts_in
from tests.runs.fake_runs import make_run

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def test_groups_are_compared(output: Output) -> None:
    make_seeds("runs/ppo", [10.0, 20.0, 30.0, 40.0, 50.0])
    make_seeds("runs/a2c", [10.0, 20.0], algorithm="a2c")
    lines = output(compare.run, "runs/ppo", "runs/a2c")
    assert lines[0] == "CartPole-v1: mean return of the last 100 episodes"
    assert lines[1].split() == ["seeds", "mean", "IQM", "95", "%", "interval"]
    low, high = bootstrap_interval([10.0, 20.0, 30.0, 40.0, 50.0])
    assert lines[2].split() == ["ppo", "5", "30.0", "30.0", f"{low:.1f}", "to", f"{high:.1f}"]
    assert lines[3].split() == ["a2c", "2", "15.0", "15.0", "10.0", "to", "20.0"]
    # Of ten pairs, seven are higher and two are equal: (7 + 2 / 2) / 10.
    assert next(line for line in lines if "ppo > a2c" in line).split()[3] == "0.80"
    assert "Fewer than 5 seeds, so the intervals are too narrow: a2c." in "\n".join(lines)
    assert lines[-1] == "Plot saved to compare.png"
    assert Path("compare.png").read_bytes().startswith(b"\x89PNG")


def test_environments_are_compared_separately(output: Output) -> None:
    make_seeds("runs/a", [1.0, 2.0])
    make_seeds("runs/b", [3.0, 4.0], env="Acrobot-v1")
    make_seeds("runs/c", [5.0, 6.0], env="Acrobot-v1", algorithm="a2c")
    report = json.loads(output(compare.run, "runs", "--json", "--out", "c.svg")[0])
    assert report["envs"].keys() == {"CartPole-v1", "Acrobot-v1"}
    assert report["envs"]["CartPole-v1"]["pairs"] == []
    assert report["envs"]["Acrobot-v1"]["pairs"] == [
        {"x": "a2c", "y": "ppo", "probability_of_improvement": 1.0, "interval": [1.0, 1.0]}
    ]
    assert report["envs"]["Acrobot-v1"]["groups"]["a2c"] == {
        "seeds": [0, 1], "scores": [5.0, 6.0], "mean": 5.5, "iqm": 5.5, "interval": [5.0, 6.0],
    }  # fmt: skip
    assert report["picture"] == "c.svg"
    for text in ("CartPole-v1", "Acrobot-v1", "Probability of improvement", "a2c > ppo"):
        assert text in texts_in("c.svg")


def test_one_seed_has_no_interval(output: Output) -> None:
    make_run(Path("runs/a"), [5.0])
    make_seeds("runs/b", [1.0, 2.0], algorithm="a2c")
    lines = output(compare.run, "runs")
    assert next(line for line in lines if line.startswith("  ppo ")).split() == ["ppo", "1", "5.0", "5.0", "none"]
    assert next(line for line in lines if "ppo > a2c" in line).split()[-2:] == ["1.00", "none"]
    assert "  Only one seed, so there is no interval: ppo." in lines


def test_an_environment_without_a_finished_episode_is_noted(output: Output) -> None:
    make_run(Path("runs/a"), [1.0, 2.0])
    make_run(Path("runs/b"), [None, None], env="Acrobot-v1")
    lines = output(compare.run, "runs")
    assert "Acrobot-v1: mean return of the last 100 episodes" in lines
    assert "  ppo, seed 0: left out, it has no rollout/ep_rew_mean." in lines


def test_evaluations_can_be_compared(output: Output) -> None:
    rows = [{"eval/mean_reward": 3.0}, {"eval/mean_reward": 8.0}, {}]
    make_run(Path("runs/a"), [1.0, 1.0, 1.0], more=rows)
    make_run(Path("runs/b"), [1.0], seed=1)
    report = json.loads(output(compare.run, "runs", "--json", "--metric", "eval")[0])
    assert report["metric"] == "eval/mean_reward"
    assert report["envs"]["CartPole-v1"]["groups"]["ppo"]["scores"] == [8.0]
    assert "ppo, seed 1: left out, it has no eval/mean_reward." in report["notes"]


def test_a_run_without_a_score_is_left_out(output: Output) -> None:
    make_run(Path("runs/a"), [None])
    make_run(Path("runs/b"), [4.0], seed=1)
    assert "  ppo, seed 0: left out, it has no rollout/ep_rew_mean." in output(compare.run, "runs")
    with pytest.raises(ConfigError, match="none of these runs has a value"):
        compare.run(["runs/a"])


def test_an_unknown_metric_is_an_error_with_a_guess() -> None:
    make_run(Path("run"))
    with pytest.raises(ConfigError, match="Did you mean 'time/fps'"):
        compare.run(["run", "--metric", "fps"])


def test_without_matplotlib_there_is_a_table_and_no_plot(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(Path("run"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert output(compare.run, "run")[-1] == "(no plot: pip install 'raceway[plot]')"
    assert not Path("compare.png").exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        compare.run(["run", "--out", "c.png"])


def test_tables_fit_into_a_narrow_terminal(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for number in range(3):
        settings = {"first_long_setting": number, "second_long_setting": number, "lr": number}
        make_seeds(f"runs/{number}", [1.0 + number, 2.0 + number], **settings)
    lines = output(compare.run, "runs")
    assert max(map(len, lines)) <= 60
    assert "  [3] ppo first_long_setting=2 lr=2 second_long_setting=2" in lines
    assert next(line for line in lines if "[3] > [1]" in line).split()[3] == "1.00"
    assert "the intervals are too narrow: all of them." in " ".join(map(str.strip, lines))
    monkeypatch.setenv("COLUMNS", "200")
    lines = output(compare.run, "runs")
    assert any(line.startswith("  ppo first_long_setting=2 lr=2 second_long_setting=2  ") for line in lines)
