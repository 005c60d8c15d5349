"""A cluster: one leader writes, a quorum confirms, every node has the same rows in a file of its own."""
