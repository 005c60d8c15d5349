"""Reads of logs: blocks from memory or from the engine, and records beside damage."""
