"""A node of a cluster: its engine, its part in the shared log, and the loop that follows or leads."""
