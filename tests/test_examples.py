"""The examples run, and print the same results on every engine."""

import copy
import doctest
import importlib
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

import numpy as np
import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
REINFORCE = ROOT / "examples/reinforce"
SHORT = [str(REINFORCE / "main.py"), "--iterations", "12", "--episodes-per-iter", "6"]
MUJOCO = ("halfcheetah", "hopper", "walker2d", "ant")


def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | environment,
        check=False,
    )


def curve(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"Mean Reward: +(-?[\d.]+) \| Loss: +(-?[\d.]+)", done.stdout)
    assert rows, done.stdout
    return [f"{reward} {loss}" for reward, loss in rows]


# REINFORCE: the program.


@pytest.fixture(scope="module")
def local() -> subprocess.CompletedProcess[str]:
    return run(*SHORT, "--local")


@pytest.fixture(scope="module")
def distributed() -> subprocess.CompletedProcess[str]:
    return run(*SHORT, "--engine", "process", "--workers", "3")


@pytest.mark.parametrize(
    "options",
    [("--engine", "inline"), ("--engine", "process", "--workers", "1"), ("--engine", "ray")],
    ids=" ".join,
)
def test_reinforce_has_the_same_curve_on_every_engine(
    options: tuple[str, ...], local: subprocess.CompletedProcess[str], distributed: subprocess.CompletedProcess[str]
) -> None:
    assert curve(run(*SHORT, *options)) == curve(local) == curve(distributed)


def test_reinforce_engine_from_the_environment_variable(local: subprocess.CompletedProcess[str]) -> None:
    assert curve(run(*SHORT, RACEWAY_ENGINE="inline")) == curve(local)


def test_reinforce_with_another_seed(local: subprocess.CompletedProcess[str]) -> None:
    assert curve(run(*SHORT, "--local", "--seed", "1")) != curve(local)


@pytest.mark.parametrize("env", ["ant", "halfcheetah"])
def test_reinforce_on_mujoco(env: str, tmp_path: Path) -> None:
    short = [SHORT[0], "--env", env, "--iterations", "2", "--episodes-per-iter", "4"]
    local_curve = curve(run(*short, "--local", cwd=tmp_path))
    assert curve(run(*short, "--engine", "process", "--workers", "3", cwd=tmp_path)) == local_curve


@pytest.mark.parametrize("mode", ["local", "distributed"])
def test_printed_output_of_reinforce(mode: str, request: pytest.FixtureRequest) -> None:
    done = request.getfixturevalue(mode)
    title = {"local": "Local REINFORCE on CartPole-v1", "distributed": "Distributed REINFORCE on CartPole-v1"}[mode]
    expected = f"""\
{"=" * 60}
{title}{" using Raceway Runner" if mode == "distributed" else ""}
{"=" * 60}

Configuration:
  Environment: CartPole-v1
  Observation dim: 4
  Action dim: 2
  Continuous actions: False
  Training iterations: 12
  Episodes per iteration: 6
  Total episodes: 72
  Seed: 0

Starting {mode} training...
Iteration    0 | Mean Reward: <    8.1> | Loss: <  8.4>
Iteration   10 | Mean Reward: <    8.1> | Loss: <  8.4>
Iteration   11 | Mean Reward: <    8.1> | Loss: <  8.4>

{"=" * 60}
Training Complete!
  Total time: #.##s
  Episodes: 72 (#.# episodes/sec)
  Final Mean Reward: #.#
{"=" * 60}
"""
    out = re.sub(r"(?<=Reward: )(?=.{8} \|) *-?\d+\.\d", "<    8.1>", done.stdout)
    out = re.sub(r"(?<=Loss: )(?=.{8}\n) *-?\d+\.\d{4}", "<  8.4>", out)
    out = re.sub(r"(?<=time: )\d+\.\d\d(?=s\n)", "#.##", out)
    out = re.sub(r"\d+\.\d(?= episodes/sec)|(?<=Final Mean Reward: )\d+\.\d(?=\n)", "#.#", out)
    assert out == expected
    assert done.stderr == ""
    final = re.search(r"Final Mean Reward: (.*)", done.stdout)
    assert final is not None
    assert final.group(1) == curve(done)[-1].split()[0]


def test_reinforce_learns() -> None:
    rewards = [
        float(line.split()[0]) for line in curve(run(*SHORT[:1], "--iterations", "31", "--episodes-per-iter", "20"))
    ]
    assert rewards[-1] > 4 * rewards[0]


def test_reinforce_saves_a_plot(tmp_path: Path) -> None:
    done = run(*SHORT, "--local", "--plot", cwd=tmp_path, MPLBACKEND="agg", MPLCONFIGDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.endswith(f"{'=' * 60}\nPlot saved to {tmp_path / 'reinforce-cartpole.png'}\n")
    assert (tmp_path / "reinforce-cartpole.png").read_bytes().startswith(b"\x89PNG")


DISPLAY_BACKEND = """
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas, FigureManagerBase as FigureManager

def show(block=None):
    print("shown")
"""


@pytest.mark.parametrize("display", [":0", ""])
def test_reinforce_shows_the_plot_if_there_is_a_display(display: str, tmp_path: Path) -> None:
    (tmp_path / "fake_display.py").write_text(DISPLAY_BACKEND)
    environment = {"DISPLAY": display, "WAYLAND_DISPLAY": "", "MPLBACKEND": "module://fake_display"}
    paths = {"PYTHONPATH": str(tmp_path), "MPLCONFIGDIR": str(tmp_path)}
    done = run(*SHORT, "--local", "--plot", cwd=tmp_path, **environment, **paths)
    assert done.returncode == 0, done.stderr
    has_display = bool(display) or sys.platform == "darwin"
    assert done.stdout.endswith("shown\n") is has_display


@pytest.mark.parametrize("options", [("--local",), ("--engine", "process")], ids=" ".join)
def test_reinforce_interrupt(options: tuple[str, ...]) -> None:
    # Restore the signal's default: a shell without job control makes background processes, tests included, ignore it.
    start = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", start, sys.executable, SHORT[0], "--iterations", "10000", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        assert any(line.startswith("Iteration    0") for line in program.stdout)
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does
        out, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "Training Complete" not in out
    assert err == ""


def test_reinforce_with_an_unknown_engine() -> None:
    done = run(*SHORT, RACEWAY_ENGINE="proces")
    assert done.returncode == 1
    assert done.stderr.startswith("error: unknown engine 'proces'. Did you mean 'process'?")


# REINFORCE: the parts of the program.


@pytest.fixture
def reinforce(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of the program, which other examples have under the same names."""
    monkeypatch.syspath_prepend(REINFORCE)
    for name in ("main", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(main=importlib.import_module("main"), model=importlib.import_module("model"))
    for name in ("main", "model"):
        sys.modules.pop(name)


def linear_sizes(net: nn.Sequential) -> list[tuple[int, int]]:
    return [(layer.in_features, layer.out_features) for layer in net if isinstance(layer, nn.Linear)]


def test_discrete_policy(reinforce: SimpleNamespace) -> None:
    config = reinforce.model.ENV_CONFIGS["cartpole"]
    torch.manual_seed(3)
    policy = reinforce.model.create_policy(config)
    assert type(policy) is reinforce.model.DiscretePolicy
    assert [type(layer) for layer in policy.net] == [nn.Linear, nn.ReLU, nn.Linear]
    assert linear_sizes(policy.net) == [(4, 128), (128, 2)]
    assert isinstance(policy(torch.zeros(1, 4)), torch.distributions.Categorical)
    assert config.lr == 1e-2
    torch.manual_seed(3)
    assert torch.equal(policy.net[0].weight, nn.Linear(4, 128).weight)
    assert torch.equal(policy.net[2].weight, nn.Linear(128, 2).weight)


@pytest.mark.parametrize("env", MUJOCO)
def test_continuous_policy(env: str, reinforce: SimpleNamespace) -> None:
    config = reinforce.model.ENV_CONFIGS[env]
    torch.manual_seed(3)
    policy = reinforce.model.create_policy(config)
    assert type(policy) is reinforce.model.ContinuousPolicy
    assert [type(layer) for layer in policy.net] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert linear_sizes(policy.net) == [(config.obs_dim, 256), (256, 256), (256, config.action_dim)]
    assert isinstance(policy(torch.zeros(1, config.obs_dim)), torch.distributions.Normal)
    assert policy.log_std.tolist() == [0.0] * config.action_dim
    assert policy.log_std.requires_grad
    assert config.lr == 3e-4
    torch.manual_seed(3)
    for layer, sizes in zip(policy.net[::2], linear_sizes(policy.net), strict=True):
        assert torch.equal(layer.weight, nn.Linear(*sizes).weight)


@pytest.mark.parametrize("env", ["cartpole", *MUJOCO])
def test_environments_match_their_configs(env: str, reinforce: SimpleNamespace) -> None:
    config = reinforce.model.ENV_CONFIGS[env]
    environment = reinforce.model.create_env(config)
    assert environment.spec.id == config.name
    assert environment.observation_space.shape == (config.obs_dim,)
    if config.continuous:
        assert environment.action_space.shape == (config.action_dim,)
        assert "Clip" not in str(environment)
    else:
        assert environment.action_space.n == config.action_dim
    environment.close()


def test_numpy_actors_sample_from_the_policy(reinforce: SimpleNamespace) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    discrete = reinforce.model.DiscretePolicy(4, 3)
    act, state = discrete.actor(), np.array([1, -2, 3, 2], np.float32)
    actions = [act(state, noise) for noise in discrete.sample_noise(rng, 20_000)]
    probabilities = discrete(torch.from_numpy(state)).probs.detach().numpy()
    assert np.bincount(actions, minlength=3) / 20_000 == pytest.approx(probabilities, abs=0.02)
    assert np.ptp(probabilities) > 0.1  # uniform actions would fail

    continuous = reinforce.model.ContinuousPolicy(4, 2)
    with torch.no_grad():
        continuous.log_std += torch.tensor([0.5, 1.0])
    act, noise = continuous.actor(), continuous.sample_noise(rng, 20_000)
    assert np.std(noise, axis=0) == pytest.approx([1, 1], abs=0.02)
    mean = continuous.net(torch.from_numpy(state)).detach().numpy()
    std = np.exp([0.5, 1.0])
    assert act(state, np.array([1, -2], np.float32)) == pytest.approx(mean + std * [1, -2], rel=1e-5)


def test_actions_are_not_clipped(reinforce: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    received = []
    config = reinforce.model.ENV_CONFIGS["hopper"]
    env = reinforce.model.create_env(config)
    step = env.unwrapped.step
    monkeypatch.setattr(env.unwrapped, "step", lambda action: (received.append(action), step(action))[1])
    monkeypatch.setattr(reinforce.model, "create_env", lambda _: env)
    weights = reinforce.model.create_policy(config).state_dict()
    episode = reinforce.main.collect_episode(weights, env_name="hopper", seed=np.random.SeedSequence(0))
    assert np.array_equal(episode["actions"], received)
    assert np.abs(received).max() > 1
    env.close()


def test_one_update_is_the_gradient_of_the_mean_over_episodes(
    reinforce: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reinforce.main, "CHUNK_STEPS", 5)  # chunks that begin and end inside episodes
    config = reinforce.model.ENV_CONFIGS["hopper"]
    learner = reinforce.main.Learner(config, seed=0)
    policy = copy.deepcopy(learner.policy)
    rng = np.random.default_rng(0)
    # The rewards differ in scale: if returns were normalised over all episodes, the second would dominate.
    episodes = [
        {
            "states": rng.standard_normal((steps, 11), dtype=np.float32),
            "actions": rng.standard_normal((steps, 3), dtype=np.float32),
            "rewards": (scale * rng.standard_normal(steps)).astype(np.float32),
            "total_reward": scale,
        }
        for steps, scale in ((4, 1.0), (7, 100.0), (1, 1.0))
    ]
    losses = []
    for episode in episodes:
        rewards = episode["rewards"].astype(float)
        returns = np.array([sum(0.99**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))])
        weights = (returns - np.mean(returns)) / (np.std(returns) + 1e-8)
        log_probs = policy(torch.from_numpy(episode["states"])).log_prob(torch.from_numpy(episode["actions"])).sum(1)
        losses.append(-(log_probs * torch.from_numpy(weights)).sum())
    loss = sum(losses) / 3
    loss.backward()

    assert learner.update(episodes) == pytest.approx(loss.item(), rel=1e-4)
    assert learner.mean_reward == 34.0
    for actual, expected in zip(learner.policy.parameters(), policy.parameters(), strict=True):
        assert actual.grad.numpy() == pytest.approx(expected.grad.numpy(), rel=1e-3, abs=1e-5)
    assert isinstance(learner.optimizer, torch.optim.Adam)
    change = (learner.policy.log_std - policy.log_std).detach()
    assert change.abs().numpy() == pytest.approx([3e-4] * 3, rel=1e-3)  # Adam's first step, whatever the gradient
    assert torch.equal(change.sign(), -policy.log_std.grad.sign())


def test_doctests_of_reinforce(reinforce: SimpleNamespace) -> None:
    results = doctest.testmod(reinforce.main)
    assert results.attempted >= 2
    assert not results.failed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--env cartpol", "invalid choice: 'cartpol' (choose from"),
        ("--iterations 0", "argument --iterations: must be a whole number from 1, not '0'"),
        ("--iterations 2.5", "argument --iterations: must be a whole number from 1, not '2.5'"),
        ("--episodes-per-iter=-3", "argument --episodes-per-iter: must be a whole number from 1, not '-3'"),
        ("--workers 0", "argument --workers: must be a whole number from 1, not '0'"),
        ("--seed=-1", "argument --seed: must be a whole number from 0 to 2**64 - 1, not '-1'"),
        ("--local --engine ray", "--local collects in this process; leave out --engine and --workers"),
        ("--local --workers 2", "--local collects in this process; leave out --engine and --workers"),
        ("--env ant", "--env ant needs MuJoCo: pip install 'gymnasium[mujoco]'"),
        ("--plot", "--plot needs matplotlib: pip install matplotlib"),
    ],
)
def test_reinforce_rejects_invalid_options(
    options: str,
    message: str,
    reinforce: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("mujoco", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)  # as if not installed
    with pytest.raises(SystemExit) as stopped:
        reinforce.main.parse_args(options.split())
    assert stopped.value.code == 2
    assert f"error: {message}" in re.sub(r"argument --env: ", "", capsys.readouterr().err)


def test_defaults_of_reinforce(reinforce: SimpleNamespace) -> None:
    assert vars(reinforce.main.parse_args([])) == {
        "env": "cartpole",
        "local": False,
        "iterations": 100,
        "episodes_per_iter": 100,
        "plot": False,
        "engine": None,
        "workers": None,
        "seed": 0,
    }
    assert list(reinforce.model.ENV_CONFIGS) == ["cartpole", *MUJOCO]


def test_readme_and_pyproject_of_reinforce_match_the_program(reinforce: SimpleNamespace) -> None:
    project = tomllib.loads((REINFORCE / "pyproject.toml").read_text())["project"]
    dependencies = {re.split("[<>=]", line)[0] for line in project["dependencies"]}
    assert dependencies == {"raceway", "torch", "gymnasium[mujoco]"}
    assert project["optional-dependencies"]["plot"][0].startswith("matplotlib")
    page = (REINFORCE / "README.md").read_text()
    for option in vars(reinforce.main.parse_args([])):
        assert f"\n| `--{option.replace('_', '-')}` |" in page
    snippet = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert snippet is not None
    assert textwrap.indent(snippet.group(1), "    ") in (REINFORCE / "main.py").read_text()
    for name, config in reinforce.model.ENV_CONFIGS.items():
        assert re.search(rf"\n\| `{name}` \| {config.name} \| .* \| {config.obs_dim} \| {config.action_dim} \|", page)


# Plans.


PLANS = ("a3c", "a2c", "apex", "two_trainers", "maml")


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_plans_run(engine: str) -> None:
    done = run("examples/plans/main.py", "--engine", engine, "--items", "10")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(PLANS)


def test_documentation_shows_the_current_plans(tmp_path: Path) -> None:
    done = run("examples/plans/main.py", "--engine", "inline", "--svg", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs/concepts/flow.md").read_text()
    source = (ROOT / "examples/plans/main.py").read_text()
    for name in PLANS:
        match = re.search(rf"^def {name}\(.*?(?=\n\n\n)", source, re.MULTILINE | re.DOTALL)
        assert match is not None
        assert re.sub(r'\n    """.*?"""', "", match.group(), count=1) in page
        assert f"../images/plans/{name}.svg" in page
        current = (tmp_path / f"{name}.svg").read_text()
        documented = (ROOT / f"docs/images/plans/{name}.svg").read_text()
        # The tooltips contain line numbers, which unrelated edits of the file may change.
        assert re.sub(r"main\.py:\d+", "", current) == re.sub(r"main\.py:\d+", "", documented)


# Replay.


REPLAY = "examples/replay/main.py"


@pytest.mark.parametrize("engine", ["process", "ray"])
def test_replay_has_the_same_weights_on_every_engine(engine: str) -> None:
    short = [REPLAY, "--steps", "3000", "--engine"]
    inline, other = run(*short, "inline"), run(*short, engine)
    assert inline.returncode == other.returncode == 0, inline.stderr + other.stderr
    assert re.search(r"weights [0-9a-f]{16}\n$", inline.stdout)
    assert other.stdout == inline.stdout


def test_replay_learns() -> None:
    done = run(REPLAY, "--engine", "inline", "--steps", "20000")
    means = [float(mean) for mean in re.findall(r"episodes +([\d.]+)", done.stdout)]
    assert len(means) == 4, done.stdout + done.stderr
    assert means[-1] > 80 > 40 > means[0]


TWO_TRAINERS = "examples/two_trainers/main.py"


def test_two_trainers_train_both_policies(tmp_path: Path) -> None:
    done = run(TWO_TRAINERS, "--steps", "9000", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ppo: mean return -\d", done.stdout, re.MULTILINE)
    assert re.search(r"^dqn: mean return -\d", done.stdout, re.MULTILINE)


def test_two_trainers_print_their_plan() -> None:
    done = run(TWO_TRAINERS, "--plan")
    assert "split(ppo, dqn)" in done.stdout, done.stderr
    assert run(TWO_TRAINERS, "--steps", "0").returncode == 2
