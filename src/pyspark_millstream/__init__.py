"""Registers `format("millstream")` with Spark, which looks for packages of this name."""

from millstream.spark.source import MillstreamSource as DefaultSource
from millstream.spark.worker import leave_quietly

__all__ = ["DefaultSource"]

leave_quietly()
