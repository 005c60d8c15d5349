"""What may happen to a queue: rules that run inside a transaction."""
