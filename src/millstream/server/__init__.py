"""The server: a process with a port; REST, a streaming socket, tokens, metrics."""
