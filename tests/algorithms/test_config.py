"""Values of settings that no algorithm accepts."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from gymnasium import spaces

from raceway.algorithms import AlgorithmConfig, find_algorithm
from raceway.checks import check_positive
from raceway.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ppo", {"gamma": 2.0}, "gamma must be a number from 0 to 1, not 2.0"),
        ("ppo", {"gamma": 0}, "gamma must be a number above 0, not 0"),
        ("ppo", {"lam": -0.1}, "lam must be a number from 0 to 1, not -0.1"),
        ("ppo", {"clip": -3.0}, "clip must be a number above 0"),
        ("ppo", {"value_coef": float("nan")}, "value_coef must be a finite number, not nan"),
        ("ppo", {"stop_return": float("inf")}, "stop_return must be a finite number, not inf"),
        ("ppo", {"hidden": (64, 0)}, "the width of a hidden layer must be a whole number from 1, not 0"),
        ("ppo", {"hidden": 64}, r"hidden must be the widths of the hidden layers, such as \(64, 64\), not 64"),
        ("dqn", {"epsilon": 1.5}, "epsilon must be a number from 0 to 1"),
        ("apex", {"beta": "x"}, "beta must be a number from 0 to 1, not 'x'"),
        ("impala", {"max_rho": 0.0}, "max_rho must be a number above 0"),
        ("ppo", {"lam": None}, "lam must be a number from 0 to 1, not None"),
        ("ppo", {"num_envs": None}, "num_envs must be a whole number from 1, not None"),
    ],
)
def test_values_out_of_range_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_algorithm(name).settings(**settings)


@dataclass(frozen=True, kw_only=True)
class OwnConfig(AlgorithmConfig):
    """Settings of an algorithm that gives known names other meanings."""

    setting_checks: ClassVar = {"temperature": check_positive}

    alpha: float = 5.0
    beta: str = "auto"
    clip: float = 0.0
    lam: float | None = None
    temperature: float | None = None


def test_settings_are_checked_by_the_class_that_gives_them_a_meaning() -> None:
    assert vars(OwnConfig(max_grad_norm=None)).items() >= {"alpha": 5.0, "beta": "auto", "clip": 0.0}.items()
    for name in ("temperature", "gamma"):
        with pytest.raises(ConfigError, match=f"{name} must be a number above 0"):
            OwnConfig(**{name: 0.0})


def test_an_algorithm_for_tasks_is_not_suggested_for_other_environments() -> None:
    assert find_algorithm("maml").needs_tasks
    with pytest.raises(
        ConfigError, match=r"dqn is for discrete actions.* Use one of: a2c, a3c, impala, ppo, reinforce"
    ):
        find_algorithm("dqn").check_actions(spaces.Box(-1, 1, (1,)), "Pendulum-v1")
