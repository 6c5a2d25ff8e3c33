"""Text from outside, made fit for logs and terminals."""

from rich.markup import escape


def harmless(text: str, most: int = 300) -> str:
    """Text of a site for log and terminal: printable, short, and with Rich's markup escaped. For the last moment only.

    A terminal would obey escape sequences, and Rich its markup.
    """
    return escape(printable(text, most))


def printable(text: str, most: int) -> str:
    """Text on one line in which what cannot be printed is spelled out, as are characters that turn the direction."""
    short = text if len(text) <= most else text[: max(most - 3, 0)] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in short)
