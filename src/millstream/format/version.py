"""The number of the format that all rows of a store have, whatever engine keeps them."""

from __future__ import annotations

FORMAT = 1
"""Stored beside the rows: in the header of a file, or in the object `format` of a bucket.

A store with a higher number is refused and left unchanged. `keys.VERSION` is another number: the
first byte of each key.
"""
