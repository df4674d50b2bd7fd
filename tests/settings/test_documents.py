"""Files of settings as data, and the lines of their keys."""

import sys
from pathlib import Path

import pytest

from raceway.errors import ConfigError
from raceway.settings.documents import Document, read_document


def document(directory: Path, name: str, text: str) -> Document:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return read_document(path)


TOML = '''# lr = 1
note = """
lr = 2
"""
hidden = [
  64, # gamma = 1
]
'lr' = 3e-4

env_kwargs.size = 1
[tail]
gamma = 1
[[gamma]]
x = 1
'''
YAML = """# lr: 1
note: |
  lr: 2
hidden:
  - 64
env_kwargs: {lr: 3}
lr: 3e-4
"gamma": 1
size: 1_000
name: "3e-4"
"""
JSON = """{
  "note": "\\"lr\\": 1, {",
  "env_kwargs": {
    "lr": [2, {"gamma": 1}]
  },

  "lr"
    : 3e-4, "hidden": [], "empty": {},
  "gamma": null
}
"""


def test_lines_of_toml(tmp_path: Path) -> None:
    read = document(tmp_path, "a.toml", TOML)
    lines = {key: read.find_line(key) for key in ("note", "hidden", "lr", "env_kwargs", "tail", "gamma", "missing")}
    assert lines == {"note": 2, "hidden": 5, "lr": 8, "env_kwargs": 10, "tail": 11, "gamma": 13, "missing": None}
    assert read.values["lr"] == 3e-4


@pytest.mark.parametrize("ending", ["yaml", "yml", "YAML"])
def test_lines_and_numbers_of_yaml(tmp_path: Path, ending: str) -> None:
    read = document(tmp_path, f"a.{ending}", YAML)
    assert {key: read.find_line(key) for key in ("note", "hidden", "env_kwargs", "lr", "gamma", "x")} == {
        "note": 2, "hidden": 4, "env_kwargs": 6, "lr": 7, "gamma": 8, "x": None
    }  # fmt: skip
    assert (read.values["lr"], read.values["size"], read.values["name"]) == (3e-4, 1000, "3e-4")
    assert document(tmp_path, "empty.yaml", "# nothing\n").values == {}


def test_lines_of_json_and_of_an_object_in_it(tmp_path: Path) -> None:
    read = document(tmp_path, "a.json", JSON)
    assert {key: read.find_line(key) for key in ("note", "env_kwargs", "lr", "hidden", "gamma", "x")} == {
        "note": 2, "env_kwargs": 3, "lr": 7, "hidden": 8, "gamma": 9, "x": None
    }  # fmt: skip
    inner = read.inner("env_kwargs")
    assert (inner.values, inner.find_line("lr")) == ({"lr": [2, {"gamma": 1}]}, 4)
    assert str(inner.error("lr", "it is wrong")) == f"{tmp_path / 'a.json'}, line 4: it is wrong"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "lr = \n", r"a.toml is not valid TOML: .*line 1"),
        ("a.toml", "lr = 1\nlr = 2\n", r"a.toml is not valid TOML: .*line 2"),
        ("a.json", "{\n'lr': 1}", r"a.json is not valid JSON: .*line 2"),
        ("a.json", '{"lr": 1,\n"lr": 2}', r"a.json, line 2: lr is already set in line 1"),
        ("a.json", "[1]", r"a.json is no config file: it holds a list"),
        ("a.yaml", "lr: [1\nx: 2", r"a.yaml is not valid YAML: .*line 2"),
        ("a.yaml", "lr: 1\nlr: 2\n", r"a.yaml, line 2: lr is already set in line 1"),
        ("a.yaml", "x: !!python/object/apply:os.getcwd []", r"a.yaml is not valid YAML"),
        ("a.yaml", "- 1", r"a.yaml is no config file: it holds a list"),
        ("a.ini", "lr = 1", r"a.ini is no config file: its name does not end in .toml, .yaml, .yml, .json"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        document(tmp_path, name, text)


def test_a_missing_file_and_other_encodings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no config file .*none.toml"):
        read_document(tmp_path / "none.toml")
    (tmp_path / "a.toml").write_bytes(b"lr = '\xff'")
    with pytest.raises(ConfigError, match=r"a.toml cannot be read: .*utf-8"):
        read_document(tmp_path / "a.toml")
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbflr = 1\r\nx = 2\r\n")  # as Windows editors save it
    read = read_document(tmp_path / "a.toml")
    assert (read.values, read.find_line("x")) == ({"lr": 1, "x": 2}, 2)


def test_yaml_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"a.yaml needs PyYAML: pip install 'raceway.yaml.'. Or write it as TOML"):
        document(tmp_path, "a.yaml", "lr: 1")
