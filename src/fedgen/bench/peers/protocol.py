"""How a peer in a separate process is driven: a line with a number of rounds in, a line of JSON out.

A peer calls `begin` before each round and `end` after it. Between the rounds that were asked for it waits, so
that contenders take turns on a machine whose speed drifts.
"""

import json
import os
import sys
import time


class Driver:
    """The peer's side: takes the time of each round."""

    def __init__(self) -> None:
        # Whatever else prints must not get between the lines of the protocol.
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._wanted = 0
        self._seconds: list[float] = []
        self._losses: list[float] = []
        self._start = 0.0

    def begin(self) -> bool:
        """Wait for the request of a round; False when there are no more."""
        if self._wanted == len(self._seconds):
            line = sys.stdin.readline()
            if not line.strip():
                return False
            self._wanted, self._seconds, self._losses = int(line), [], []
        self._start = time.perf_counter()
        return True

    def end(self, loss: float) -> None:
        """The round is over; `loss` is its mean training loss."""
        self._seconds.append(time.perf_counter() - self._start)
        self._losses.append(loss)
        if len(self._seconds) == self._wanted:
            self._out.write(json.dumps({"seconds": self._seconds, "losses": self._losses}) + "\n")
            self._out.flush()
