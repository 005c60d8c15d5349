"""The client: the same nouns as an open file, over a server's streaming socket."""
