"""`--config` and `--print-config`."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from raceway.algorithms import algorithm_names, find_algorithm
from raceway.algorithms.setting_sources import SOURCE_LABELS
from raceway.cli import main
from raceway.commands.config_file_options import config_text
from raceway.runs.settings_file import MergedSettings, merge_settings, read_settings_file


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RACEWAY_ENGINE", raising=False)


def read_back(name: str, text: str) -> Any:
    Path("printed.toml").write_text(text)
    algorithm = find_algorithm(name)
    return algorithm.settings(**merge_settings(algorithm, read_settings_file("printed.toml"), {}).values)


PRESETS = [
    (name, env)
    for name in algorithm_names()
    for env in (find_algorithm(name).config.env, *find_algorithm(name).presets)
]


@pytest.mark.parametrize(("name", "env"), PRESETS)
def test_printed_settings_are_read_back_as_they_were(name: str, env: str) -> None:
    algorithm = find_algorithm(name)
    for more in ({}, {"iterations": 3}, {algorithm.config.progress.setting: None, "max_grad_norm": None}):
        settings = {"env": env, **more}
        text = config_text(algorithm, MergedSettings(settings, frozenset()))
        assert read_back(name, text) == algorithm.settings(**settings)


@pytest.mark.parametrize("name", algorithm_names())
def test_every_optional_setting_can_be_none(name: str) -> None:
    algorithm = find_algorithm(name)
    values = vars(algorithm.settings())
    optional = [field for field, value in values.items() if value is None or field in ("max_grad_norm", "lr_end")]
    settings = {**dict.fromkeys(optional), "num_shards": None}
    assert read_back(name, config_text(algorithm, MergedSettings(settings, frozenset()))) == algorithm.settings(
        **settings
    )


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_printing_says_the_sources_and_starts_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Path("a.toml").write_text("lr = 0.5\nseed = 3\n")
    options = ["--config", "a.toml", "--env", "cartpole", "--max-grad-norm", "none", "--local", "--seed", "4"]
    for command in ("train", "explain"):
        text = printed(capsys, command, "ppo", *options, "--print-config")
        lines = text.splitlines()
        for line in (
            'algorithm = "ppo"', "lr = 0.5  # file", 'env = "cartpole"  # you', 'max_grad_norm = "none"  # you',
            'engine = "inline"  # you', "num_envs = 64  # preset", "seed = 4  # you", "keep = 3  # default",
            "# save_every is not set", "# optimiser",
        ):  # fmt: skip
            assert line in lines
        assert "Source of the preset: As in RL Baselines3 Zoo" in text
        comments = {line.partition("  # ")[2] for line in lines if "  # " in line}
        assert comments <= set(SOURCE_LABELS.values())
        assert tomllib.loads(text)["hidden"] == [64, 64]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.toml"]
    Path("b.toml").write_text(text)
    assert tomllib.loads(printed(capsys, "train", "--config", "b.toml", "--print-config")) == tomllib.loads(text)


def test_values_that_toml_cannot_hold_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for value, message in (("None", "TOML has no form for None"), ("(1,2)", "would be read as { x = [1, 2] }")):
        assert main(["train", "ppo", "--print-config", "--env-kwargs", f"x={value}"]) == 1
        assert message in capsys.readouterr().err


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuring.md").read_text()
    example = page.partition("```toml\n")[2].partition("```")[0]
    cfg = read_back("ppo", example)
    assert (cfg.total_timesteps, cfg.max_grad_norm, cfg.num_envs) == (1_000_000, None, 64)
    for before, after in (("total_timesteps", "total_timestep"), ("[64, 64]", "[64, 0]")):
        Path("ppo.toml").write_text(example.replace(before, after))
        assert main(["train", "--config", "ppo.toml", "--print-config"]) == 1
        error = capsys.readouterr().err.strip().partition(" Choose from")[0]
        assert f"\n{error}" in page


def test_the_algorithm_may_be_in_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text("algorithm = 'a2c'\nlr = 0.5\n")
    assert 'algorithm = "a2c"' in printed(capsys, "train", "--config=a.toml", "--print-config")
    assert main(["train", "ppo", "--config", "a.toml", "--print-config"]) == 1
    assert "a.toml, line 1: the settings are those of a2c, not of ppo" in capsys.readouterr().err
    Path("b.toml").write_text("lr = 0.5\n")
    assert main(["train", "--config", "b.toml"]) == 1
    assert "b.toml names no algorithm. Add one to it" in capsys.readouterr().err
    assert main(["train", "ppo", "--config", "c.toml"]) == 1
    assert "there is no config file c.toml" in capsys.readouterr().err
    Path("d.toml").write_text("lr = 0.5\nalgorithm = 'pp'\n")
    assert main(["train", "--config", "d.toml"]) == 1
    assert "d.toml, line 2: unknown algorithm 'pp'. Did you mean 'ppo'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "explain"])
def test_the_printed_file_says_which_policies_belong_to_it(capsys: pytest.CaptureFixture[str], command: str) -> None:
    env = ["--env", "pettingzoo:mpe2.simple_spread_v3"]
    text = printed(capsys, command, "ppo", *env, "--policies", "per-agent", "--print-config")
    assert text.startswith("# Settings for: raceway train ppo --config FILE --policies per-agent.\n")
    small = "--local --iterations 1 --num-envs 1 --fragment-steps 4 --num-minibatches 1 --num-epochs 1 --run-dir run"
    printed(capsys, "train", "ppo", *env, *small.split())
    text = printed(capsys, command, "--config", "run", "--print-config")
    assert text.startswith("# Settings for: raceway train ppo --config FILE --policies POLICIES.toml.\n")


def test_help_header_and_explain_show_settings_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text(
        "lr = 0.5\nnum_envs = 8\nnum_shards = 1\nfragment_steps = 4\nnum_minibatches = 1\nkeep = 2"
    )
    with pytest.raises(SystemExit):
        main(["train", "ppo", "--config", "a.toml", "--env", "cartpole", "--lr", "0.25", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "[0.25, you; default 0.0003]" in text
    assert "[8, file; default 8]" in text
    assert "Source of the preset: As in RL Baselines3 Zoo" in text
    options = ["ppo", "--config", "a.toml", "--env", "cartpole", "--local"]
    lines = printed(capsys, "train", *options, "--iterations", "1", "--run-dir", "run").splitlines()
    title = "From the config file: num_envs 8, num_shards 1, lr 0.5, keep 2, fragment_steps 4, num_minibatches 1"
    assert f"  {title}" in lines
    text = printed(capsys, "explain", *options)
    assert title in text.splitlines()
    assert "Source of the preset: As in RL Baselines3 Zoo" in text
    assert "seed = 0  # file" in printed(capsys, "train", "--config", "run", "--print-config")


def test_seeds_start_at_that_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text("seed = 5\nnum_envs = 8\nnum_shards = 1\nfragment_steps = 4\nnum_minibatches = 1\n")
    lines = printed(
        capsys, "train", "ppo", "--config", "a.toml", "--local", "--iterations", "1", "--seeds", "2", "--run-dir", "two"
    )
    assert "seed 5: " in lines
    assert sorted(path.name for path in Path("two").glob("seed-*")) == ["seed-5", "seed-6"]
