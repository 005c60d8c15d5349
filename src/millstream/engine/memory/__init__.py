"""The memory engine: no disk, for tests and simulation."""
