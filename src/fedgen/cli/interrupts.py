"""Ctrl-C at the command line: while modules are imported it ends the process, afterwards it is an exception.

An exception amid the import of a compiled module can leave it half made, and crash the interpreter later.
"""

import signal


def end_at_once() -> None:
    """Let Ctrl-C end the process, until `raise_again`; not where it is ignored, as in the background."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, so that what a command has begun is cleared away; call it after imports."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
