"""The format number of a store's rows, the same for every engine."""

from __future__ import annotations

FORMAT = 1
"""Stored beside the rows: in the header of a file, or in the object `format` of a bucket.

A store with a higher number is refused and left unchanged. `keys.VERSION` is independent of it: the
first byte of each key.
"""
