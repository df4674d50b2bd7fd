"""Groups of runs, which `raceway plot` and `raceway compare` show: which runs belong together, and their labels."""

import json
from pathlib import Path

import numpy as np
import pytest

from raceway.commands import compare
from raceway.runs.comparison import compare_groups, group_runs, metric_curves
from raceway.ui.comparison_plots import _thin_out
from tests.commands.conftest import Output
from tests.commands.run_seeds import make_seeds
from tests.runs.fake_runs import make_run

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def labels(*paths: str) -> list[tuple[str, int]]:
    return [(group.label, len(group.runs)) for group in group_runs(paths)[0]]


def test_runs_that_differ_in_seed_and_engine_are_one_group() -> None:
    make_run(Path("runs/a"), seed=0, engine="inline", num_workers="auto", run_dir="a")
    make_run(Path("runs/b"), seed=1, engine="ray", num_workers=4, address="auto", save_every=100, eval_every=5, keep=3)
    make_run(Path("runs/c"), seed=2, env="CartPole", stopped_by=None)
    assert labels("runs") == [("ppo", 3)]


def test_labels_name_the_settings_that_differ() -> None:
    make_run(Path("runs/a"), lr=0.1)
    make_run(Path("runs/b"), lr=0.2, hidden=[8])
    make_run(Path("runs/c"), algorithm="a2c", lr=0.3, hidden=[16])
    assert labels("runs") == [("ppo hidden=64,64 lr=0.1", 1), ("ppo hidden=8 lr=0.2", 1), ("a2c", 1)]


def test_many_differences_are_counted() -> None:
    make_run(Path("runs/a"), a=1, b=1, c=1, d=1, e=1, f=1)
    make_run(Path("runs/b"), a=2, b=2, c=2, d=2, e=2, f=2)
    assert labels("runs") == [("ppo a=1 b=1 c=1 d=1 and 2 others", 1), ("ppo a=2 b=2 c=2 d=2 and 2 others", 1)]


def test_labels_are_unique(output: Output) -> None:
    make_run(Path("runs/a"), a=1, b=1, c=1, d=1, e=1)
    make_run(Path("runs/b"), a=1, b=1, c=1, d=1, e=2)
    make_run(Path("runs/c"), a=2, b=2, c=2, d=2, e=2)
    make_run(Path("runs/d"), a=1, b=1, c=1, d=1, e="2")  # which is also shown as 2
    names = [label for label, _ in labels("runs")]
    assert names == [
        "ppo a=1 b=1 c=1 d=1 e=1", "ppo a=1 b=1 c=1 d=1 e=2", "ppo a=2 b=2 c=2 d=2 and 1 other",
        "ppo a=1 b=1 c=1 d=1 e=2 (2)",
    ]  # fmt: skip
    (line,) = output(compare.run, "runs", "--json")
    assert list(json.loads(line)["envs"]["CartPole-v1"]["groups"]) == names


def test_an_unset_setting_that_older_runs_lack_is_no_difference() -> None:
    make_run(Path("runs/a"), seed=0)
    make_run(Path("runs/b"), seed=1, clip=None)
    assert labels("runs") == [("ppo", 2)]


def test_differences_are_within_an_environment() -> None:
    make_run(Path("runs/a"), lr=0.1)
    make_run(Path("runs/b"), lr=0.2, env="Acrobot-v1")
    assert labels("runs") == [("ppo", 1), ("ppo", 1)]


def test_directories_are_kept_apart() -> None:
    make_seeds("before", [1.0, 2.0])
    make_seeds("after", [1.0, 2.0, 3.0])
    make_run(Path("alone"), seed=9)
    assert labels("before", "after") == [("ppo in before", 2), ("ppo in after", 3)]
    assert labels("before", "alone") == [("ppo", 3)]
    assert labels("before", "after", "alone") == [("ppo in before", 2), ("ppo in after", 3), ("ppo", 1)]


def test_the_newest_of_two_runs_with_one_seed_counts() -> None:
    make_run(Path("runs/a-newest"), [7.0], started="2026-02-01T00:00:00+0000")
    make_run(Path("runs/b-older"), [1.0])
    (group,), notes = group_runs(["runs"])
    assert [run.mean_return for run in group.runs] == [7.0]
    assert notes == ["ppo, seed 0: it has several runs; only the newest is used, runs/a-newest."]


def test_unfinished_runs_are_noted() -> None:
    make_run(Path("runs/a"), stopped_by="interrupt")
    make_run(Path("runs/b"), seed=1)
    assert group_runs(["runs"])[1] == ["ppo, seed 0: interrupted, after 200 steps."]


def test_the_highest_score_is_named_first() -> None:
    for name, score in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        make_run(Path("runs") / name, [score], algorithm=name)
    (comparison,) = compare_groups(group_runs(["runs"])[0])
    assert [pair.label for pair in comparison.pairs] == ["b > c", "b > a", "c > a"]


def test_curves_leave_out_missing_values() -> None:
    make_run(Path("runs/a"), [None, 2.0, 4.0])
    make_run(Path("runs/b"), [None, None], seed=1)
    (group,), _ = group_runs(["runs"])
    curves = metric_curves(group, "time/episodes", "rollout/ep_rew_mean")
    assert [(seed, x.tolist(), y.tolist()) for seed, (x, y) in curves.seeds.items()] == [(0, [20, 30], [2, 4])]


def test_long_curves_are_thinned_by_means() -> None:
    x, y = _thin_out(np.arange(10_000.0), np.tile([0.0, 2.0], 5000))
    assert len(x) == 1000
    np.testing.assert_allclose(y, 1.0)
    np.testing.assert_allclose(x, 4.5 + 10 * np.arange(1000))
