"""A server as a node of a cluster: what it answers itself, and what it hands on to the leading node."""
