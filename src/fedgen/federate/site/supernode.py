"""Flower's SuperNode as a process that ends when its work does; start.sh runs it.

Flower's own command runs an HTTP interface in another thread, which goes on when the main thread has ended by an error:
the process would stay, connected to nothing, and whoever waits for its end in order to start it anew waits for ever.
"""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from flwr.supernode.cli import flower_supernode


def run_to_the_end(command: Callable[[], None]) -> NoReturn:
    """Call this and end the process with its exit code, whatever other threads do.

    It is 1 after an exception, and where the command returns: a SuperNode that is told to end exits, and one that
    returns has lost its connection by an error that it has logged.
    """
    code = 1
    try:
        command()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.argv[0] = "flower-supernode"  # by which Flower knows what it is
    run_to_the_end(flower_supernode)
