"""Benchmarks: what is promised of speed, measured against a limit inside the same run."""
