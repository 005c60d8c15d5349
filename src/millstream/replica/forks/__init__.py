"""Forks: logs that share their first records with another log, and go back into it."""
