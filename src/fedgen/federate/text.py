"""Text from outside, made fit for logs and terminals."""


def printable(text: str, most: int = 300) -> str:
    """Text on one line in which what cannot be printed is spelled out, as are characters that turn the direction.

    A terminal would obey escape sequences. Rich's markup stays what it is: who prints it leaves that switched off, or
    escapes it.
    """
    short = text if len(text) <= most else text[: max(most - 3, 0)] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in short)
