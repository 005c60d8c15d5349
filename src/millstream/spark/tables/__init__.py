"""Continuous tables: Delta and Iceberg tables that follow logs, exactly once."""
