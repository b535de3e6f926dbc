"""Where the files of ranks are read: in processes of this machine, on a Dask or on a Ray cluster.

``open_engine`` gives the place, and ``spread`` runs tasks there, whichever it is.
"""

from zerotrace.analysis.engines.opening import EngineKind, open_engine
from zerotrace.analysis.engines.processes import Processes
from zerotrace.analysis.engines.spreading import Engine, Lost, require_visible, spread

__all__ = ["Engine", "EngineKind", "Lost", "Processes", "open_engine", "require_visible", "spread"]
