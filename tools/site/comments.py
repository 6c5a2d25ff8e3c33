"""An extension of Griffe: the comments beside the fields of a class become its documented attributes.

Where a field is explained once, beside it in the code, the reference shows the same words.
"""

import ast
import re
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Adds an `Attributes` section to the docstrings of classes whose fields have comments."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Read the comments of a class that has a docstring without such a section."""
        if cls.docstring is None or "Attributes:" in cls.docstring.value:
            return
        lines = cls.source.splitlines()
        found: dict[str, str] = {}
        (tree,) = ast.parse(cls.source).body
        for node in tree.body if isinstance(tree, ast.ClassDef) else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                words = _comment(lines, node.lineno - 1, (node.end_lineno or node.lineno) - 1)
                found |= {node.target.id: words} if words else {}
        if found:
            text = "\n".join(f"    {name}: {words}" for name, words in found.items())
            cls.docstring.value = f"{cls.docstring.value.rstrip()}\n\nAttributes:\n{text}\n"


def _comment(lines: list[str], first: int, last: int) -> str:
    """The comment after a field, or the lines of comments above it."""
    if after := re.search(r"\s# (.*)$", lines[last]):
        return after[1]
    above = []
    while first and (line := lines[first - 1].strip()).startswith("# "):
        above.insert(0, line[2:])
        first -= 1
    return " ".join(above)
