"""Rooms over WebSockets and server-sent events: who listens here, and what is pushed to them."""
