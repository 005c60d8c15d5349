"""Copies of a log: how a store gives records to a peer, and how the peer adopts the records."""
