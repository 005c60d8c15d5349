"""Logs with records at stable offsets, and cursors that remember the positions of readers."""
