"""Below any request: connections, TLS handshakes, and the guard that looks at each request first."""
