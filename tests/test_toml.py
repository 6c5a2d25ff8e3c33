"""What is written as TOML can be read back, whatever is in the values, and people find a comment above each entry."""

import tomllib
from typing import Any

import pytest

from fedgen.toml import dumps, dumps_commented

VALUES: dict[str, Any] = {
    "newline": "two\nlines\r\n",
    "quotes": 'a "b" \'c\' """',
    "backslash": "C:\\data\\new\\u0041",
    "unicode": "Größe ü 汉字 🙂",
    "control": "\x00\x07\x1b\x7f",
    "empty_text": "",
    "empty_tuple": (),
    "tuple": ("a", "b\n"),
    "nested_list": [[1, 2], [3]],
    "truth": True,
    "whole": -7,
    "small": 1e-05,
    "exact": 0.1 + 0.2,
    "infinite": float("inf"),
    "empty_table": {},
    "table": {"a": 1, "b": {"c": {"d": [1.5], "e\nf": "g"}}, "feddistill+": {"x": ()}},
}


def as_lists(value: Any) -> Any:
    """TOML has one kind of list."""
    if isinstance(value, dict):
        return {key: as_lists(inner) for key, inner in value.items()}
    return [as_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", VALUES)
def test_one_value(name: str) -> None:
    assert tomllib.loads(dumps({name: VALUES[name]})) == {name: as_lists(VALUES[name])}


def test_all_values_with_comments() -> None:
    """Tables come last: what follows one would belong to it."""
    entries = [(f"about {name}", {name: value}) for name, value in sorted(VALUES.items())]
    text = dumps_commented([*entries, ("two\nlines", {"last": 1})])
    assert tomllib.loads(text) == {**as_lists(VALUES), "last": 1}
    for name, value in VALUES.items():
        start = {"table": "[table]"}.get(name, f"[{name}]" if isinstance(value, dict) else f"{name} = ")
        assert f"# about {name}\n{start}" in text
    assert "# two\n# lines\nlast = 1\n" in text
