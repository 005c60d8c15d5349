"""Filters: SQL conditions over a message's headers, as in Jakarta Messaging selectors.

A filter is compiled twice, to a Python closure and to a Spark SQL expression; the two agree on
every input. The language is described in `docs/FILTERS.md`.
"""

from millstream.filters.filter import Filter, parse

__all__ = ["Filter", "parse"]
