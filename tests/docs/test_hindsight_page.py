"""The environment of docs/hindsight.md fits hindsight replay, and the page names every setting of it."""

import re
from pathlib import Path
from typing import Any

from raceway.algorithms.shared_config import HindsightConfig
from raceway.envs import EnvSettings
from raceway.envs.goals import check_goals
from raceway.settings.field_types import choices, setting_types
from raceway.training.train import train

PAGE = (Path(__file__).parents[2] / "docs" / "hindsight.md").read_text()


def test_the_environment_of_the_page_is_learnt_in_hindsight(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(example, names)
    check_goals(EnvSettings("Throw-v0"))
    result = train(
        "ddpg", env="Throw-v0", replay="her", seed=1, total_timesteps=1200, steps_per_update=2, hidden=(32, 32),
        lr=3e-3, batch_size=64, noise=0.5, engine="inline", progress=False, run_dir=tmp_path / "run",
    )  # fmt: skip
    evaluation = result.policy.evaluate(100)
    assert evaluation.successes is not None
    assert evaluation.successes.mean() > 0.2  # of random actions 0.02


def test_every_strategy_is_on_the_page() -> None:
    strategies = choices(setting_types(HindsightConfig)["her_strategy"])
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == sorted(strategies)
