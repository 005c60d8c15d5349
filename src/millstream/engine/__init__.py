"""Engines: ordered maps from bytes to bytes with atomic, durable batches; one folder per backend."""
