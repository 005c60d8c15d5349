"""Forks: logs that share the first records of a parent log, and can be merged back into it."""
