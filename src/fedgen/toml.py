"""TOML written by tomli-w, with a comment above each entry where people are to edit the file."""

from collections.abc import Iterable, Mapping
from typing import Any

import tomli_w


def dumps(values: Mapping[str, Any]) -> str:
    """These values as TOML; `tomllib` reads the same values back, with tuples as lists."""
    return tomli_w.dumps(values)


def dumps_commented(entries: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Pairs of a comment and what belongs below it, mostly one key with its value.

    Tables come last, since whatever follows a table in TOML belongs to it.
    """
    ordered = sorted(entries, key=lambda entry: any(isinstance(value, Mapping) for value in entry[1].values()))
    return "\n".join(_comment(comment) + dumps(values) for comment, values in ordered)


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())
