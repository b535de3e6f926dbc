"""``python -m zerotrace`` is ``zerotrace``, and both begin here."""

from __future__ import annotations

import gc
import signal


def run() -> None:
    """The command line, with Ctrl-C quiet from the first import to the last exit handler.

    While modules are imported, and once the command is over, there is nothing to tidy up: the signal then ends the
    process as it would any other program, and not by an exception in the middle of an import.
    """
    # Where it is ignored (nohup, a background job), it stays so.
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from zerotrace.cli import main

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    finally:
        if heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        # Python searches all that is alive for cycles before it ends, twice: a twentieth of a short analysis.
        gc.freeze()


if __name__ == "__main__":
    run()
