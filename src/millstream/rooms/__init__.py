"""Rooms: logs with a short memory, pushed to all who listen now."""
