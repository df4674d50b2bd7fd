"""Values of settings that no algorithm accepts."""

from dataclasses import dataclass
from typing import Any

import pytest
from gymnasium import spaces

from raceway.algorithms import AlgorithmConfig, find_algorithm
from raceway.errors import ConfigError
from raceway.settings.field_types import PositiveFloat


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ppo", {"gamma": 2.0}, "gamma must be a number from 0 to 1, not 2.0"),
        ("ppo", {"gamma": 0}, "gamma must be a number above 0, not 0"),
        ("ppo", {"lam": -0.1}, "lam must be a number from 0 to 1, not -0.1"),
        ("ppo", {"clip": -3.0}, "clip must be a number above 0"),
        ("ppo", {"value_coef": float("nan")}, "value_coef must be a finite number, not nan"),
        ("ppo", {"stop_return": float("inf")}, "stop_return must be a finite number, not inf"),
        ("ppo", {"stop_eval_return": 9.0}, "stop_eval_return 9 is a mean return of evaluations.*Set eval_every too"),
        ("ppo", {"hidden": (64, 0)}, "the width of a hidden layer must be a whole number from 1, not 0"),
        ("ppo", {"hidden": 64}, r"hidden must be the widths of the hidden layers, such as \(64, 64\), not 64"),
        ("dqn", {"epsilon": 1.5}, "epsilon must be a number from 0 to 1"),
        ("apex", {"beta": "x"}, "beta must be a number from 0 to 1, not 'x'"),
        ("impala", {"max_rho": 0.0}, "max_rho must be a number above 0"),
        ("ppo", {"lam": None}, "lam must be a number from 0 to 1, not None"),
        ("ppo", {"num_envs": None}, "num_envs must be a whole number from 1, not None"),
        ("ppo", {"num_envs": True}, "num_envs must be a whole number from 1, not True"),
        ("ppo", {"seed": -1}, "seed must be a whole number from 0, not -1"),
        ("ppo", {"value_coef": "half"}, "value_coef must be a number, not 'half'"),
        ("ppo", {"shared_layers": "no"}, "shared_layers must be true or false, not 'no'"),
        ("ppo", {"activation": "tan"}, "unknown activation 'tan'. Did you mean 'tanh'.* Choose from: relu, tanh"),
        ("ppo", {"engine": 3}, "unknown engine 3. Choose from: inline, process, ray"),
        (
            "ppo",
            {"network": "lstn"},
            "network must be mlp, lstm, gru, module:function, or a function, .*Did you mean 'lstm'",
        ),
        ("ppo", {"num_workers": "atuo"}, "num_workers must be a whole number from 1, or auto, .*Did you mean 'auto'"),
        ("ppo", {"env_kwargs": "size=3"}, "env_kwargs must be names and values"),
        ("ppo", {"save_seconds": -1}, "save_seconds must be a number of seconds, or 0 for never, not -1"),
        ("ppo", {"run_dir": 3}, "run_dir must be text, or a path, not 3"),
        ("dqn", {"epsilon_steps": 0}, "epsilon_steps must be a whole number from 1, not 0"),
        (
            "impala",
            {"learner_on": "moon"},
            "learner_on: unknown place of the learner 'moon'. Choose from: actor, driver",
        ),
    ],
)
def test_values_out_of_range_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_algorithm(name).settings(**settings)


@dataclass(frozen=True, kw_only=True)
class OwnConfig(AlgorithmConfig):
    """Settings of an algorithm that gives known names other meanings."""

    alpha: float = 5.0
    beta: str = "auto"
    clip: float = 0.0
    lam: float | None = None
    temperature: PositiveFloat | None = None


def test_settings_are_checked_by_the_class_that_gives_them_a_meaning() -> None:
    assert vars(OwnConfig(max_grad_norm=None)).items() >= {"alpha": 5.0, "beta": "auto", "clip": 0.0}.items()
    for name in ("temperature", "gamma"):
        with pytest.raises(ConfigError, match=f"{name} must be a number above 0"):
            OwnConfig(**{name: 0.0})


def test_an_algorithm_for_tasks_is_not_suggested_for_other_environments() -> None:
    assert find_algorithm("maml").needs_tasks
    with pytest.raises(
        ConfigError,
        match=r"dqn is for discrete actions.* Use one of: a2c, a3c, .*ddpg, .*impala, ppo, .*reinforce, sac",
    ):
        find_algorithm("dqn").check_actions(spaces.Box(-1, 1, (1,)), "Pendulum-v1")
