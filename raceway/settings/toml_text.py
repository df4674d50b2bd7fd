"""Values as TOML text, which the standard library can read but not write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: Any) -> str:
    """Return a value as TOML, on one line. A ValueError says what TOML has no form for.

    >>> print(toml_value({"size": [3, 4], "wind speed": 0.5, "easy": True}))
    { size = [3, 4], "wind speed" = 0.5, easy = true }
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        pairs = ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    raise ValueError(f"TOML has no form for {value!r}")


def _key(text: str) -> str:
    return text if _BARE_KEY.fullmatch(text) else _string(text)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
