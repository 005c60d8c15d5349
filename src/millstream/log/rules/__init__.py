"""The rules of logs: each takes a transaction and a command, and answers."""
