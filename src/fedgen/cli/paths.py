"""A group of commands in which a file that the system refuses is the user's to mend."""

from typing import Any

from typer.core import TyperGroup

from fedgen.errors import FedgenError


class PathErrors(TyperGroup):
    """Says which path cannot be used and why, as where it is another user's, whichever command needs it."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            path = error.filename if error.filename2 is None else error.filename2
            if path is None:  # it is not about a file
                raise
            raise FedgenError(f"{path} cannot be read or written: {error.strerror}") from error
