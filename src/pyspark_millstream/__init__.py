"""Registers `format("millstream")` with Spark, which looks for packages of this name."""

from millstream.spark.local.worker import leave_quietly
from millstream.spark.source.source import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]

leave_quietly()
