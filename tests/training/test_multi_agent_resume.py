"""Runs with several agents resume exactly where their plans are synchronous, and lose nothing where they are not."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from raceway.checkpoints.store import Checkpoints
from raceway.errors import ConfigError
from raceway.training.train import resume, train
from tests.training.multi_agent_runs import SHORT_SPREAD, SMALL, SPREAD, TIC_TAC_TOE, TWIN, TWO_PPO
from tests.training.saved_runs import assert_same_state, last_checkpoint, start_command


@pytest.fixture(autouse=True)
def _in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("network", "engines", "env"),
    [
        ("mlp", ("process", "process"), {"env": SPREAD, "policies": TWO_PPO, "env_kwargs": {"max_cycles": 10}}),
        ("lstm", ("inline", "ray"), {"env": SPREAD, "policies": TWO_PPO, "env_kwargs": {"max_cycles": 10}}),
        ("lstm", ("inline", "inline"), {"env": TIC_TAC_TOE, "policies": "per-agent"}),
    ],
    ids=["process", "ray", "turns"],
)
def test_two_synchronous_trainers_are_exact_on_every_engine_and_when_resumed(
    network: str, engines: tuple[str, str], env: dict[str, Any]
) -> None:
    settings = {**SMALL, **env, "network": network, "seed": 3}
    train("ppo", run_dir="whole", total_timesteps=700, **settings)
    train("ppo", run_dir="parts", total_timesteps=400, **{**settings, "engine": engines[0]}, num_workers=1)
    result = resume("parts", total_timesteps=700, engine=engines[1], num_workers=2, progress=False)
    assert_same_state("whole", "parts")
    assert [row["time/iterations"] for row in result.metrics] == list(range(1, result.summary["iterations"] + 1))


def test_a_killed_run_of_two_synchronous_trainers_ends_in_identical_state() -> None:
    Path("policies.json").write_text(json.dumps(TWO_PPO))
    options = (
        f"--env {SPREAD} --policies policies.json --env-kwargs max_cycles=10 --num-envs 4 --num-shards 2 --hidden 8 "
        "--fragment-steps 5 --num-epochs 2 --num-minibatches 2 --lr-end none --metrics-interval 0 --save-every 100 "
        "--engine process --num-workers 2 --iterations 1000000 --run-dir parts"
    )
    with start_command("train", "ppo", *options.split()) as run:
        while run.poll() is None and not [c for c in Checkpoints("parts/checkpoints").all() if c.steps > 200]:
            time.sleep(0.01)
        run.kill()
        run.communicate()
    assert run.returncode == -signal.SIGKILL
    length = last_checkpoint("parts").about["iterations"] + 6
    resume("parts", iterations=length, engine="inline", num_workers="auto", progress=False)
    train("ppo", run_dir="whole", iterations=length, **SHORT_SPREAD, policies=TWO_PPO)
    assert_same_state("whole", "parts")


def test_a_mixed_run_resumes_with_all_that_its_checkpoint_held() -> None:
    settings = {**SHORT_SPREAD, "policies": TWIN, "engine": "process", "num_workers": 2}
    before = train("ppo", run_dir="run", total_timesteps=500, **settings).summary
    saved = last_checkpoint("run").state()
    nothing = resume("run", engine="inline", num_workers="auto", progress=False).summary
    assert (nothing["stopped_by"], nothing["weights_sha256"]) == ("total_timesteps", before["weights_sha256"])
    after = resume("run", total_timesteps=900, engine="inline", num_workers="auto", progress=False).summary
    state = last_checkpoint("run").state()
    for name, policy in after["policies"].items():
        assert policy["timesteps"] > before["policies"][name]["timesteps"] > 0
        assert state["learner"]["policies"][name]["version"] > saved["learner"]["policies"][name]["version"] > 0
    assert _num_stored(state) > _num_stored(saved) > 100


def _num_stored(state: Any) -> int:
    counts = [part["function"]["counts"][0] for part in state["flow"]["stages"].values() if _counts(part)]
    return int(counts[0])


def _counts(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("function"), dict) and "counts" in part["function"]


def test_a_run_can_be_repeated_with_the_settings_of_another() -> None:
    first = train("ppo", run_dir="first", iterations=4, **SHORT_SPREAD, policies=TWO_PPO)
    again = train(config="first", run_dir="again", progress=False)
    assert again.summary["weights_sha256"] == first.summary["weights_sha256"]


def test_settings_of_the_caller_replace_those_of_a_repeated_run() -> None:
    """But not those that a policy has for itself, as with a file of policies."""
    train("ppo", run_dir="first", iterations=1, **SHORT_SPREAD, policies=TWO_PPO)
    train(config="first", run_dir="again", progress=False, lr=0.5, num_epochs=3)
    about = json.loads(Path("again/config.json").read_text())
    own = {name: policy["config"] for name, policy in about["policies"].items()}
    assert [own[name]["lr"] for name in ("pair", "single")] == [0.5, 0.5]
    assert [own[name]["num_epochs"] for name in ("pair", "single")] == [3, 1]


def test_a_resumed_run_keeps_its_policies() -> None:
    settings = {**SHORT_SPREAD, "policies": TWO_PPO, "run_dir": "run"}
    train("ppo", iterations=2, **settings)
    assert train("ppo", resume="auto", iterations=4, **settings).summary["iterations"] == 4
    others = {**TWO_PPO, "single": {"agents": "agent_2", "num_epochs": 3}}
    with pytest.raises(ConfigError, match="cannot change when it is resumed: 'single'"):
        train("ppo", resume="auto", iterations=6, **{**settings, "policies": others})
