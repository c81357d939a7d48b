"""`python -m rl_training.cli.child ARGUMENTS`: a command that ends when the process that started it does.

Its standard input is a pipe that the runner holds open. When the runner dies, however it dies, the pipe
closes, and the command is asked to end as by SIGTERM: a training run saves first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

GRACE = 300.0
"""Seconds to save in, before the process is ended all the same."""


def main() -> int:
    """Watch the pipe, and be an ordinary `axiomrl` otherwise."""
    threading.Thread(target=_watch, daemon=True).start()
    sys.argv[0] = "axiomrl"
    from rl_training.cli import main as command

    return command()


def _watch() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
