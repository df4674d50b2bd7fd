"""Files of settings as data: TOML, YAML and JSON, with the line of every key, so that errors can name it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raceway.errors import ConfigError


@dataclass(frozen=True)
class Document:
    """The keys and values at the top of a file."""

    path: Path
    values: dict[str, Any]
    find_line: Callable[[str], int | None]
    """Returns the line of a key."""
    text: str = field(default="", repr=False)

    def error(self, key: str, problem: object) -> ConfigError:
        """Return the error for what is wrong about a key. It names the file and the line."""
        line = self.find_line(key)
        return ConfigError(f"{self.path}{'' if line is None else f', line {line}'}: {problem}")

    def inner(self, key: str) -> Document:
        """Return the JSON object that is the value of a key, as a document."""
        [start] = [start for name, _, start in _json_members(self.text, self.text.index("{")) if name == key]
        return Document(self.path, self.values[key], _json_lines(self.text, start).get)


def read_document(path: Path) -> Document:
    """Read a file by its ending: .toml, .yaml, .yml or .json."""
    readers = {".toml": _read_toml, ".yaml": _read_yaml, ".yml": _read_yaml, ".json": _read_json}
    if path.suffix.lower() not in readers and not path.exists():
        raise ConfigError(f"there is no config file and no run {path}. Check its name.")
    if path.suffix.lower() not in readers:
        raise ConfigError(f"{path} is no config file: its name does not end in {', '.join(readers)}. Rename it.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"there is no config file {path}. Check its name.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path} cannot be read: {error}. Repair it, or name another.") from error
    document = readers[path.suffix.lower()](path, text)
    if not isinstance(document.values, dict):
        kind = type(document.values).__name__
        raise ConfigError(
            f"{path} is no config file: it holds a {kind}, not settings. Write key = value, as its format does."
        )
    return document


def _read_toml(path: Path, text: str) -> Document:
    try:
        return Document(path, tomllib.loads(text), lambda key: _toml_line(text, key))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Correct it.") from error


def _toml_line(text: str, key: str) -> int | None:
    """Return the line at which a key at the top of a TOML document begins.

    A line that looks like it may be in a longer string or in a table, so the lines up to it are parsed.
    """
    lines = text.split("\n")
    begins = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    for number, line in enumerate(lines):
        before = _parsed_toml(lines[:number]) if begins.match(line) else None
        if before is not None and key not in before:
            rest = (_parsed_toml(lines[: number + more]) for more in range(1, len(lines) - number + 1))
            if key in next((document for document in rest if document is not None), {}):
                return number + 1
    return None


def _parsed_toml(lines: list[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return None


def _read_json(path: Path, text: str) -> Document:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}. Correct it.") from error
    if not isinstance(values, dict):
        return Document(path, values, lambda key: None)
    members = [(name, line) for name, line, _ in _json_members(text, text.index("{"))]
    document = Document(path, values, dict(members).get, text)
    _check_unique(document, members)
    return document


def _json_lines(text: str, start: int) -> dict[str, int]:
    return {name: line for name, line, _ in _json_members(text, start)}


def _json_members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield the keys of a valid JSON object that begins at `start`, with their lines and where their values begin."""
    decoder, position = json.JSONDecoder(), _after_space(text, start + 1)
    while text[position] != "}":
        line = text.count("\n", 0, position) + 1
        key, end = decoder.raw_decode(text, position)
        value = _after_space(text, _after_space(text, end) + 1)
        yield key, line, value
        position = _after_space(text, decoder.raw_decode(text, value)[1])
        if text[position] == ",":
            position = _after_space(text, position + 1)


def _after_space(text: str, position: int) -> int:
    while text[position].isspace():
        position += 1
    return position


def _read_yaml(path: Path, text: str) -> Document:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            f"{path} needs PyYAML: pip install 'raceway[yaml]'. Or write it as TOML, which needs nothing."
        ) from error

    class Loader(yaml.SafeLoader):
        """Reads 3e-4 as a number, as YAML 1.2 has it; PyYAML takes it for text."""

    exponent = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(path, {}, lambda key: None)
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        members = [(str(key.value), key.start_mark.line + 1) for key, _ in pairs]
        values = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}. Correct it.") from error
    finally:
        loader.dispose()
    if isinstance(values, dict):
        values = {str(key): value for key, value in values.items()}
    document = Document(path, values, dict(members).get)
    _check_unique(document, members)
    return document


def _check_unique(document: Document, members: list[tuple[str, int]]) -> None:
    first: dict[str, int] = {}
    for name, line in members:
        if name in first:
            raise document.error(name, f"{name} is already set in line {first[name]}. Remove one of them.")
        first[name] = line
