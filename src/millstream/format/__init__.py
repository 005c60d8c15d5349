"""Bytes and values: every layout that reaches a disk or a wire, as pure functions."""
