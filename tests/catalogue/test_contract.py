"""Properties of every algorithm in the catalogue. A new algorithm is tested as soon as its file exists."""

import dataclasses
import inspect
import math
from pathlib import Path

import pytest

from raceway.algorithms import find_algorithm
from raceway.commands.config_options import field_docs
from raceway.errors import ConfigError
from raceway.training.train import Training, train
from tests.catalogue.small_settings import NAMES, RECURRENT, acts, plan_text, setting_names, small_settings

ROOT = Path(__file__).parents[2]


def page_of(name: str) -> str:
    return (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# The plan.


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_built_without_an_engine_and_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = find_algorithm(name)
    training = Training(algorithm, algorithm.settings(**small_settings(name, engine="process", num_workers=2)))
    before = training.agent.sha256(), training.learner.version, training.exploration.state()
    monkeypatch.setattr("raceway.training.train.make_engine", None)  # calling it is an error
    with training.open_flow(run=False) as flow:
        plan = flow.explain()
    assert "create(" in plan
    steps = ("TrainOneStep", "ApplyGradients", "MetaUpdate", "FitOneStep", "AllReduce")
    assert any(step in plan for step in steps)
    assert type(training.report).__name__ in plan
    assert before[:2] == (training.agent.sha256(), training.learner.version)
    assert before[2].keys() == training.exploration.state().keys()
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", NAMES)
def test_only_the_parts_that_workers_need_are_sent_and_knobs_beside_them(name: str) -> None:
    algorithm = find_algorithm(name)
    training = Training(algorithm, algorithm.settings(**small_settings(name)))
    with training.open_flow(run=True) as flow, flow.start() as run:
        for _ in range(12):
            next(run)
        actors = {actor.name: actor for node in run.nodes for actor in node.actors}
        received = [actor.call("received").result() for name, actor in actors.items() if name.startswith("rollouts")]
    assert bool(received) == acts(name)
    agent, knobs = training.agent, training.exploration.knobs
    for sent in received:
        assert sent["weights"].keys() == agent.weights(agent.worker_parts).keys()
        assert sent["knobs"].keys() == knobs.keys()
        assert not [weight for weight in sent["weights"] for knob in knobs if knob in weight]
        if "epsilon_steps" in setting_names(name):
            assert 0 < sent["knobs"]["epsilon"] < 1, "the schedule has reached the workers"


# The page and the settings.


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_page_with_the_plan_and_the_presets(name: str) -> None:
    algorithm, page = find_algorithm(name), page_of(name)
    assert page.startswith(f"# {name}\n")
    assert algorithm.summary.endswith(".")
    body = inspect.getsource(algorithm.plan).partition('"""Return the plan."""\n')[2]
    assert body
    assert body in page
    for env, preset in algorithm.presets.items():
        assert env in page
        algorithm.config(**preset)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_help_and_refuses_nonsense(name: str) -> None:
    config = find_algorithm(name).config
    fields = {field.name: field for field in dataclasses.fields(config)}
    assert [field for field in fields if field not in field_docs(config)] == []
    for field in fields.keys() - {"env"}:  # which may be anything that makes an environment
        with pytest.raises(ConfigError, match=field):
            config(**{field: object()})
    for field, default in ((field, entry.default) for field, entry in fields.items()):
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            with pytest.raises(ConfigError, match=field):
                config(**{field: math.nan})
    with pytest.raises(ConfigError, match=r"unknown setting of .* 'learning_rat'\. Did you mean"):
        find_algorithm(name).settings(learning_rat=1.0)


# Recurrent networks.


@pytest.mark.parametrize("name", [name for name in NAMES if name not in RECURRENT])
def test_an_algorithm_without_memory_refuses_a_recurrent_network(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot train a recurrent network. Use --network mlp"):
        train(name, **small_settings(name, network="lstm", iterations=2))


def test_the_names_of_the_catalogue() -> None:
    assert {"a2c", "a3c", "apex", "dqn", "impala", "maml", "ppo", "reinforce", "sac"} <= set(NAMES)
    assert "gather_async" in plan_text("a3c")
