"""Sync: two stores compare their logs and exchange what either lacks."""
