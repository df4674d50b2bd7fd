"""The batches of every algorithm have the columns and shapes of the table in `raceway/rl/batch.py`."""

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from raceway.algorithms import find_algorithm
from raceway.flow._operators import ForEach, Operator
from raceway.rl import Batch, Layout, layout_of, tree_map
from raceway.rl.batch import COLUMNS, SIZES
from raceway.rollouts.fragment_values import EPISODE_COLUMNS
from raceway.training.train import train
from tests.catalogue.small_settings import NAMES, RECURRENT, small_settings

TABLE = {column.name: column for column in COLUMNS}


def deviations(batch: Batch) -> list[str]:
    """Return how a batch deviates from the table."""
    layout, sizes, found = layout_of(batch), dict[str, int](), list[str]()
    for name, column in batch.items():
        if name not in TABLE or layout not in TABLE[name].shapes:
            found.append(f"{layout} with a column {name!r}")
            continue
        letters = re.findall(r"[A-Z]|\.\.\.", TABLE[name].shapes[layout])
        shapes: list[tuple[int, ...]] = []
        tree_map(lambda part, shapes=shapes: shapes.append(np.shape(part)), column)
        for shape in shapes:
            axes = [letter for letter in letters if letter != "..."]
            exact = len(axes) == len(letters)
            fits = len(shape) == len(axes) if exact else len(shape) >= len(axes)
            if not fits or any(sizes.setdefault(letter, size) != size for letter, size in zip(axes, shape)):  # noqa: B905
                found.append(f"{layout} with {name!r} of shape {shape}, not {TABLE[name].shapes[layout]} with {sizes}")
    if layout is Layout.FRAGMENT and "truncated" in batch and "final_obs" in batch:
        num_truncated = int((batch["truncated"] & batch.get("valid", True)).sum())
        found += [f"{num_truncated} truncated steps, and {sizes['K']} final_obs"] if sizes["K"] != num_truncated else []
    return found


def batches_in(item: Any) -> Iterator[Batch]:
    """Yield the batches in an item of a flow: one, those of a round or of a task, or those of several policies."""
    if isinstance(item, Mapping) and any(isinstance(part, np.ndarray) for part in item.values()):
        yield dict(item)
    elif isinstance(item, Mapping):
        for part in item.values():
            yield from batches_in(part)
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from batches_in(part)


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[Layout]:
    """The layouts of all batches that operators read or return, each of which is checked."""
    monkeypatch.chdir(tmp_path)
    seen: set[Layout] = set()
    apply, accept = ForEach.apply, Operator._accept

    def check(operator: Operator, *items: Any) -> None:
        for batch in (batch for item in items for batch in batches_in(item)):
            assert deviations(batch) == [], operator.spec.label
            seen.add(layout_of(batch))

    def check_and_apply(operator: ForEach, item: Any) -> Any:
        check(operator, item[0])
        result = apply(operator, item)
        check(operator, result)
        return result

    def check_and_accept(operator: Operator, answer: Any) -> None:
        accept(operator, answer)
        check(operator, *(item for item, _ in operator.ready))

    monkeypatch.setattr(ForEach, "apply", check_and_apply)
    monkeypatch.setattr(Operator, "_accept", check_and_accept)
    return seen


def expected_layouts(name: str) -> set[Layout]:
    """Return the layouts that the types of an algorithm's plan name."""
    stream = next(iter(inspect.signature(find_algorithm(name).plan).parameters.values())).annotation
    return {layout for layout in Layout if f"[{layout.capitalize()}]" in stream}


@pytest.mark.parametrize("name", NAMES)
def test_batches_have_the_columns_of_the_table(name: str, layouts: set[Layout]) -> None:
    train(name, iterations=12, **small_settings(name))
    assert layouts
    assert layouts >= expected_layouts(name)


@pytest.mark.parametrize("name", RECURRENT)
def test_batches_of_recurrent_networks_have_the_columns_of_the_table(name: str, layouts: set[Layout]) -> None:
    train(name, iterations=2, **small_settings(name, network="gru"))
    assert layouts
    assert layouts >= expected_layouts(name)


class Noise(gym.Env[Any, Any]):
    """Shows random images, for ten steps."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._image(), 1.0, False, self.steps == 10, {}

    def _image(self) -> np.ndarray:
        return self.np_random.integers(256, size=(36, 36, 1), dtype=np.uint8)


def test_batches_of_images_have_the_columns_of_the_table(layouts: set[Layout]) -> None:
    train("ppo", iterations=2, **small_settings("ppo", env=Noise, env_kwargs={}))
    assert layouts == {Layout.FRAGMENT, Layout.ROWS}


@pytest.mark.parametrize("env", ["pettingzoo:mpe2.simple_spread_v3", "pettingzoo:pettingzoo.classic.tictactoe_v3"])
def test_batches_of_several_agents_have_the_columns_of_the_table(env: str, layouts: set[Layout]) -> None:
    settings = {"hidden": (8,), "network": "gru", "scale_rewards": True, "num_envs": 2, "fragment_steps": 8}
    train("impala", env=env, **settings, batch_steps=16, engine="inline", total_timesteps=100, progress=False)
    assert Layout.FRAGMENT in layouts


def test_deviations_are_found() -> None:
    batch = {"reward": np.zeros((3, 2)), "obs": np.zeros((3, 2, 4)), "last_obs": np.zeros((2, 4))}
    assert deviations(batch) == []
    assert "'reward' of shape (3,)" in deviations({**batch, "reward": np.zeros(3)})[0]
    assert "'valid' of shape (3, 1)" in deviations({**batch, "valid": np.ones((3, 1))})[0]
    assert deviations({**batch, "discount": np.ones((3, 2))}) == ["fragment with a column 'discount'"]
    assert deviations({**batch, "rewards": np.ones((3, 2))}) == ["fragment with a column 'rewards'"]


def test_the_table_is_consistent() -> None:
    assert len(TABLE) == len(COLUMNS)
    shapes = [(column.name, layout, shape) for column in COLUMNS for layout, shape in column.shapes.items()]
    assert {layout for _, layout, _ in shapes} == set(Layout)
    assert {letter for _, _, shape in shapes for letter in re.findall(r"[A-Z]", shape)} == set(SIZES)
    assert {name for name in TABLE if name.startswith("episode_")} == set(EPISODE_COLUMNS)
