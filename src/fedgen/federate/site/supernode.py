"""Flower's SuperNode as a process that exits when its main thread ends; start.sh runs it.

Flower's own command also runs an HTTP server in another thread, which keeps the process alive after the main thread has
failed: it would stay, disconnected, and start.sh would never restart it.
"""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from fedgen.federate.flower import supernode_command


def run_and_exit(command: Callable[[], None]) -> NoReturn:
    """Run a command and exit the process with its exit code, whatever other threads do.

    The code is 1 after an exception, and also when the command returns: a SuperNode that is asked to stop calls `exit`,
    and one that returns has lost its connection after an error that it has logged.
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
    sys.argv[0] = "flower-supernode"  # Flower looks at its name
    run_and_exit(supernode_command())
