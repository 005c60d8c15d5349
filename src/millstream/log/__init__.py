"""Logs: records at stable offsets, and cursors that remember how far their readers have come."""
