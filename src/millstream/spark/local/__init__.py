"""Spark on this machine: Java, the session, and the Python of its workers."""
