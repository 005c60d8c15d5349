"""How Spark starts the Python of its workers, or has them forked."""
