"""The figures of `looseleaf bench`, each beside its baseline, measured on this machine in one run."""

from looseleaf.bench.measure import Measurement, Settings

__all__ = ["Measurement", "Settings"]
