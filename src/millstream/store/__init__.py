"""The store: one writer, one commit path, deltas and their fold, over an engine."""
