"""The SQLite engine: one file, many threads, many processes."""
