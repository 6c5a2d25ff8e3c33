"""The command `fedgen`: imports little, so that Ctrl-C is seen to before the rest is imported."""

from fedgen.cli.interrupts import end_at_once


def main() -> None:
    """Run the command."""
    end_at_once()
    from fedgen.cli.main import main as command

    command()
