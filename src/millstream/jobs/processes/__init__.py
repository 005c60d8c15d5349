"""Worker processes: a supervisor and the child processes that run jobs."""
