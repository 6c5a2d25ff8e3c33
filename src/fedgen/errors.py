"""The one exception a user's mistake raises: a sentence that says what was wrong and what would be right."""

import difflib
from collections.abc import Iterable


class FedgenError(ValueError):
    """A mistake in the input (not in the program); the command line prints it and exits with code 2."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> FedgenError:
    """The error for a name that does not exist, with those that do, and the nearest first."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return FedgenError(f"unknown {kind} '{name}'; {hint}valid: {', '.join(names) or 'none'}")
