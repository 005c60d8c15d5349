"""The embedded sessions: they answer commands from a store in this process."""
