"""Ready-made committers that write what they receive."""

from txstorm.sinks.delta import DeltaSink

__all__ = ["DeltaSink"]
