"""torchrun, made to end with the launcher: ``python -m zerotrace.capture.agent TORCHRUN-ARGS``."""

from __future__ import annotations

import signal

from zerotrace.lifetime import die_with_parent

if __name__ == "__main__":
    # torchrun ends its workers when it is told to terminate.
    die_with_parent(signal.SIGTERM)
    from torch.distributed.run import main

    main()
