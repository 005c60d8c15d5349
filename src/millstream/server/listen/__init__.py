"""Below any request: sockets, connections, TLS handshakes, and the guard of each request."""
