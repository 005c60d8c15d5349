"""Sync: two stores compare their logs and exchange missing records."""
