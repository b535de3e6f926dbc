"""An analysis as other tools read it: a native trace for Perfetto, from the tables alone."""

from zerotrace.export.run import Exported, export_perfetto

__all__ = ["Exported", "export_perfetto"]
