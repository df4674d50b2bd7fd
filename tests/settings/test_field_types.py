"""The types of settings: which values they accept, and what the errors say."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import pytest

from raceway.algorithms import AlgorithmConfig
from raceway.errors import ConfigError
from raceway.settings.field_types import (
    Accepts,
    Called,
    Count,
    Discount,
    FieldType,
    Fraction,
    Network,
    PositiveFloat,
    PositiveInt,
    Widths,
    accepts,
    check_setting,
    from_file,
    setting_types,
)

if TYPE_CHECKING:
    from decimal import Decimal

AUTO = PositiveInt | Literal["auto"]
EVEN = Annotated[int, Accepts("an even number", lambda value: value % 2 == 0)]
NAN, INF = float("nan"), float("inf")


class Shape(Protocol):
    """A protocol that `isinstance` does not take."""

    def area(self) -> float: ...


@pytest.mark.parametrize(
    ("hint", "accepted", "refused"),
    [
        (int, [0, -3, 10**30], [True, 1.0, "1", None]),
        (float, [0, 0.5, -1.0], [True, "1.0", None, NAN, INF]),
        (bool, [True, False], [0, 1, "true", None]),
        (str, ["", "x"], [3, None, b"x"]),
        (Count, [0, 5], [-1, True, 1.5]),
        (PositiveInt, [1, 10**20], [0, -1, True, "1", 2.0]),
        (PositiveInt | None, [1, None], [0, "none"]),
        (PositiveFloat, [1, 1e-30], [0, 0.0, -1, NAN, INF, "1"]),
        (Fraction, [0, 1, 0.5], [-0.1, 1.1, NAN, "x"]),
        (Discount, [1, 1e-9], [0, 1.5, NAN]),
        (Widths, [(), (64,), [64, 64]], [64, "64", (0,), (64, True), (1.5,), None]),
        (tuple[int, ...] | None, [None, (1, 2)], [("a",), 3]),
        (dict[str, Any], [{}, {"a": None}], [[], {1: 2}, "a=1", None]),
        (Literal["a", "b"], ["a"], ["c", 1, None, True]),
        (Literal[1, 2] | None, [1, None], [True, 1.0, "1"]),
        (Network, ["mlp", "module:f", len], ["cnn", 3, None]),
        (str | Path | None, ["x", Path("x"), None], [3]),
        (Callable[..., Any], [len], [3]),
        (Any, [3, None, "x"], [NAN, INF]),
        (Shape, ["nothing is checked"], []),
    ],
)
def test_types_accept_and_refuse(hint: FieldType, accepted: list[Any], refused: list[Any]) -> None:
    for value in accepted:
        assert accepts(value, hint)
        check_setting("size", value, hint)
    for value in refused:
        assert not accepts(value, hint)
        with pytest.raises(ConfigError) as caught:
            check_setting("size", value, hint)
        assert "size" in str(caught.value)
        assert repr(value) in str(caught.value) or isinstance(value, tuple)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (AUTO, "aut", "size must be a whole number from 1, or auto, not 'aut'. Did you mean 'auto'?"),
        (AUTO, 0, "size must be a whole number from 1, or auto, not 0."),
        (Literal["relu", "tanh"] | None, "tan", "unknown size 'tan'. Did you mean 'tanh'? Choose from: relu, tanh."),
        (Literal["relu", "tanh"], 3, "unknown size 3. Choose from: relu, tanh."),
        (
            Network,
            "lstn",
            "size must be mlp, lstm, gru, module:function, or a function, not 'lstn'. Did you mean 'lstm'?",
        ),
        (Annotated[Literal["a"], Called("kind of size")], "b", "size: unknown kind of size 'b'. Choose from: a."),
        (Widths, (8, 0), "size: the width of a hidden layer must be a whole number from 1, not 0"),
        (Widths, 8, "size must be the widths of the hidden layers, such as (64, 64), not 8"),
        (bool, "yes", "size must be true or false, not 'yes'"),
        (float, "big", "size must be a number, not 'big'"),
        (float, NAN, "size must be a finite number, not nan"),
        (dict[str, Any], [1], "size must be names and values, such as {'gravity': 9.8}, not [1]"),
        (EVEN, 3, "size must be an even number, not 3"),
        (EVEN, "3", "size must be an even number, not '3'"),
    ],
)  # fmt: skip
def test_errors_say_what_is_accepted(hint: FieldType, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_setting("size", value, hint)
    assert str(caught.value) == message


@dataclass(frozen=True, kw_only=True)
class Elsewhere(AlgorithmConfig):
    """The config of an algorithm in another package, with types of all kinds."""

    num_envs: int = 16
    lr: float | None = None  # type: ignore[assignment]
    gamma: Annotated[float, Accepts("a number", lambda value: True)] = 5.0
    mode: Literal["slow", "fast"] = "slow"
    only_known_to_a_type_checker: "Decimal | None" = None


def test_a_config_elsewhere_is_checked_by_its_own_types_and_inherited_conditions() -> None:
    assert Elsewhere(only_known_to_a_type_checker="anything", gamma=7.0).lr is None
    for settings, message in (
        ({"num_envs": 0}, "num_envs must be a whole number from 1, not 0"),
        ({"num_envs": None}, "num_envs must be a whole number from 1, not None"),
        ({"lr": 0.0}, "lr must be a number above 0, not 0.0"),
        ({"mode": "fats"}, "unknown mode 'fats'. Did you mean 'fast'"),
        ({"keep": True}, "keep must be a whole number from 1, not True"),
        ({"device": 0}, "device must be text, not 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            Elsewhere(**settings)  # type: ignore[arg-type]
    assert setting_types(Elsewhere)["only_known_to_a_type_checker"] is Any


@pytest.mark.parametrize(
    ("value", "hint", "result"),
    [
        ([64, 64], Widths | None, (64, 64)),
        ([1, 2], dict[str, Any], [1, 2]),
        ("none", PositiveFloat | None, None),
        ("none", PositiveFloat, "none"),
        ("none", Literal["none", "all"] | None, "none"),
        (1e6, PositiveInt, 1_000_000),
        (1.5, PositiveInt, 1.5),
        (1.0, float, 1.0),
        (8, float, 8),
    ],
)
def test_values_of_a_file_become_those_of_a_config(value: Any, hint: FieldType, result: Any) -> None:
    converted = from_file(value, hint)
    assert converted == result
    assert type(converted) is type(result)
