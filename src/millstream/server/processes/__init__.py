"""Several server processes on one port and one file."""
