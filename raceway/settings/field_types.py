"""The types of settings: which values a field of a config accepts, and the error for a value that it does not.

A config says it in its annotations, with the types below, `Literal`, or `Annotated` and a condition of its own:

    lam: Fraction = 0.95
    learner_on: Literal["driver", "thread"] = "driver"
    tau: Annotated[float, Accepts("a number above 0 and up to 1", lambda value: 0 < value <= 1)] = 0.005

`AlgorithmConfig` checks every field by its type, those of configs in other packages too. A field that a subclass
declares again with a plain type, as in `num_envs: int = 16`, keeps the conditions that the base class has for it.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from raceway.checks import nearest_name, unknown_name
from raceway.errors import ConfigError

FieldType: TypeAlias = Any
"""The type of a setting: an annotation, with what `Annotated` adds to it."""


@dataclass(frozen=True)
class Accepts:
    """A condition on the values of a type, for `Annotated`."""

    text: str
    """What is accepted, as it stands after "must be" in an error."""
    test: Callable[[Any], bool]


@dataclass(frozen=True)
class Called:
    """What errors call a value, for `Annotated`, beside the name of its setting."""

    text: str


Count = Annotated[int, Accepts("a whole number from 0", lambda value: value >= 0)]
PositiveInt = Annotated[int, Accepts("a whole number from 1", lambda value: value >= 1)]
PositiveFloat = Annotated[float, Accepts("a number above 0", lambda value: value > 0)]
NonNegativeFloat = Annotated[float, Accepts("a number from 0", lambda value: value >= 0)]
Fraction = Annotated[float, Accepts("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Discount = Annotated[
    float,
    Accepts("a number above 0", lambda value: value > 0),
    Accepts("a number from 0 to 1", lambda value: value <= 1),
]
Widths = Annotated[
    tuple[Annotated[PositiveInt, Called("the width of a hidden layer")], ...],
    Accepts("the widths of the hidden layers, such as (64, 64)", lambda value: True),
]
ImportName = Annotated[str, Accepts("module:function", lambda value: ":" in value)]
Network = Literal["mlp", "lstm", "gru"] | ImportName | Callable[..., Any]

_PLAIN: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path", tuple: "a list",
    dict: "names and values, such as {'gravity': 9.8}", Callable: "a function",
}  # fmt: skip


_types_of_configs: WeakKeyDictionary[Any, Mapping[str, FieldType]] = WeakKeyDictionary()


def setting_types(config: type[Any]) -> Mapping[str, FieldType]:
    """Return the type of every field of a config. A type whose names only a type checker knows is `Any`."""
    if config not in _types_of_configs:
        _types_of_configs[config] = _find_types(config)
    return _types_of_configs[config]


def _find_types(config: type[Any]) -> Mapping[str, FieldType]:
    found: dict[str, FieldType] = {}
    for cls in reversed(config.__mro__):
        for name, annotation in annotations_of(cls).items():
            found[name] = _with_conditions(annotation, found.get(name))
    return {field.name: found[field.name] for field in dataclasses.fields(config)}


def annotations_of(cls: type[Any]) -> dict[str, FieldType]:
    """Return the annotations of a class itself, without those of its bases; text is evaluated."""
    return {name: _evaluate(annotation, cls) for name, annotation in inspect.get_annotations(cls).items()}


def _evaluate(annotation: Any, cls: type[Any]) -> FieldType:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[cls.__module__]), dict(vars(cls)))
    except (NameError, AttributeError, KeyError, TypeError):  # imported under TYPE_CHECKING, or local to a function
        return Any


def _with_conditions(new: FieldType, base: FieldType | None) -> FieldType:
    """Return a type with its plain alternatives replaced by those of the base class that have conditions."""
    inherited = {_split(part)[0]: part for part in alternatives(base) if _conditions(part)}
    if not inherited:
        return new
    return typing.Union[tuple(inherited.get(part, part) for part in alternatives(new))]  # noqa: UP007 - of a tuple


def alternatives(hint: FieldType) -> tuple[FieldType, ...]:
    """Return the types that a union is made of, or the type itself. What a union is annotated with applies to each.

    >>> alternatives(int | None), len(alternatives(Annotated[PositiveInt | None, Called("size")]))
    ((<class 'int'>, <class 'NoneType'>), 2)
    """
    base, metadata = _split(hint)
    if not _is_union(base):
        return (hint,)
    parts = [part for option in typing.get_args(base) for part in alternatives(option)]
    return tuple(Annotated[part, *metadata] if metadata and part is not type(None) else part for part in parts)


def allows_none(hint: FieldType) -> bool:
    """Whether a setting of a type may be unset."""
    return any(part is type(None) for part in alternatives(hint))


def plain_types(hint: FieldType) -> list[Any]:
    """Return the types that a setting may have, other than None, without conditions."""
    return [_split(part)[0] for part in alternatives(hint) if part is not type(None)]


def choices(hint: FieldType) -> list[Any]:
    """Return the values that the `Literal` types of a setting name."""
    return [value for part in plain_types(hint) if _is_literal(part) for value in typing.get_args(part)]


def check_settings(config: Any) -> None:
    """Refuse a config with a setting that its type does not accept."""
    for name, hint in setting_types(type(config)).items():
        check_setting(name, getattr(config, name), hint)


def check_setting(name: str, value: Any, hint: FieldType) -> None:
    """Refuse a value that the type of a setting does not accept: a ConfigError says which values it does.

    >>> check_setting("num_workers", "atuo", PositiveInt | Literal["auto"])
    Traceback (most recent call last):
    raceway.errors.ConfigError: num_workers must be a whole number from 1, or auto, not 'atuo'. Did you mean 'auto'?
    """
    refusals: list[str] = []
    for part in alternatives(hint):
        refusal = _refusal(name, value, part)
        if refusal is None:
            return
        if part is not type(None):
            refusals.append(refusal)
    if len(refusals) == 1:
        raise ConfigError(refusals[0])
    near = nearest_name(value, map(str, choices(hint))) if isinstance(value, str) else None
    texts = [_describe(part) for part in alternatives(hint) if part is not type(None)]
    accepted = f"{', '.join(texts[:-1])}, or {texts[-1]}"
    raise ConfigError(f"{name} must be {accepted}, not {value!r}." + (f" Did you mean {near!r}?" if near else ""))


def accepts(value: Any, hint: FieldType) -> bool:
    """Whether a setting of a type may have a value."""
    return any(_refusal("", value, part) is None for part in alternatives(hint))


def from_file(value: Any, hint: FieldType) -> Any:
    """Return a value from a file, which has neither tuples nor always None, as the config has it.

    >>> from_file([64, 64], tuple[int, ...]), from_file(1e6, int), from_file("none", float | None)
    ((64, 64), 1000000, None)
    """
    kinds = plain_types(hint)
    if value == "none" and allows_none(hint) and "none" not in choices(hint):
        return None
    if isinstance(value, list) and any(typing.get_origin(kind) is tuple for kind in kinds):
        return tuple(value)
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    return value


def _refusal(name: str, value: Any, part: FieldType) -> str | None:
    """Return why a type that is no union does not accept a value; None if it does."""
    base, _ = _split(part)
    if _is_literal(base):
        if any(type(value) is type(choice) and value == choice for choice in typing.get_args(base)):
            return None
        return _prefix(name, part) + str(unknown_name(_what(name, part), value, map(str, typing.get_args(base))))
    conditions = _conditions(part)
    if not _has_type(value, base):
        text = _describe(part)
    elif isinstance(value, float) and not math.isfinite(value):
        text = conditions[0].text if conditions else "a finite number"
    else:
        items = _item_refusals(name, value, base)
        text = next((condition.text for condition in conditions if not condition.test(value)), "")
        if items or not text:
            return next(iter(items), None)
    return f"{_prefix(name, part)}{_what(name, part)} must be {text}, not {value!r}"


def _item_refusals(name: str, value: Any, base: Any) -> list[str]:
    """Return the refusals of the items of a tuple; they all have the same type."""
    args = typing.get_args(base)
    if typing.get_origin(base) is not tuple or len(args) != 2 or args[1] is not Ellipsis:
        return []
    refusals = [[_refusal(name, item, part) for part in alternatives(args[0])] for item in value]
    return [reasons[0] for reasons in refusals if reasons[0] is not None and all(reasons)]


def _has_type(value: Any, base: Any) -> bool:
    kind = typing.get_origin(base) or base
    if kind is tuple:
        return isinstance(value, (list, tuple))
    if kind is dict:
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    checkable = isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False)
    return isinstance(value, kind) if checkable else True


def _describe(part: FieldType) -> str:
    """Return what a type accepts, as it stands after "must be"."""
    base, _ = _split(part)
    if _is_literal(base):
        return ", ".join(map(str, typing.get_args(base)))
    kind = typing.get_origin(base) or base
    default = _PLAIN.get(kind) or f"of type {getattr(kind, '__name__', kind)}"
    return next((condition.text for condition in _conditions(part)), default)


def _what(name: str, part: FieldType) -> str:
    return next((item.text for item in _split(part)[1] if isinstance(item, Called)), name)


def _prefix(name: str, part: FieldType) -> str:
    return "" if _what(name, part) == name else f"{name}: "


def _conditions(part: FieldType) -> list[Accepts]:
    return [item for item in _split(part)[1] if isinstance(item, Accepts)]


def _split(hint: FieldType) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without `Annotated`, and what it was annotated with."""
    metadata: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    return (hint.__origin__, metadata) if metadata else (hint, ())


def _is_union(base: Any) -> bool:
    return typing.get_origin(base) in (typing.Union, types.UnionType)


def _is_literal(base: Any) -> bool:
    return typing.get_origin(base) is Literal
