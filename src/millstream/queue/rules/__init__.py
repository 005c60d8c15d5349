"""What may happen to a queue: rules that run inside one transaction."""
