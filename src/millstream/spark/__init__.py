"""Millstream on Spark: the data source, and pipelines over it."""
