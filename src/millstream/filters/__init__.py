"""Filters: SQL conditions over a message's headers, as in Jakarta Messaging selectors.

The parser compiles a filter to Python closures. `docs/FILTERS.md` describes the language.
"""

from millstream.filters.filter import Filter, parse

__all__ = ["Filter", "parse"]
