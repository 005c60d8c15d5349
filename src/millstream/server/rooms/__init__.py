"""Rooms over WebSockets and server-sent events: listeners, pushed messages, presence."""
