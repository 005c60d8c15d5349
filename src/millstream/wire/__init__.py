"""Commands and frames as bytes, between a client and a server."""
