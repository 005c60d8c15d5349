"""The commit path: from the operations of callers to one durable batch of the engine."""
