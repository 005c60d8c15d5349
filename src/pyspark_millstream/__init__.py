"""Registers `format("millstream")` with Spark, which looks for packages of this name."""

from millstream.spark.source import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]
