"""How Spark starts the Python of its workers; nothing here is imported by a worker."""
