"""Object storage as such: addresses, objects below a prefix, and the lease of a writer."""
