"""What a queue offers to threads alone (`millstream.threads.working`) is nothing here."""

from __future__ import annotations


class Working:
    """A worker brings its own threads, or a loop of its own; it is made from a queue of threads."""
