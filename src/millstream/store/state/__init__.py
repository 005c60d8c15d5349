"""The state of a store in memory: entities, deltas that are not folded yet, and views of readers."""
