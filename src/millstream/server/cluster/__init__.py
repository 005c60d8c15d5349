"""A server as a node of a cluster: the requests it answers itself, and those the leader answers."""
