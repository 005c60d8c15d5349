"""The server: one process, one port; REST, a streaming socket, tokens, metrics."""
