"""The store over an engine: a single writer, the commit path, deltas and the fold."""
