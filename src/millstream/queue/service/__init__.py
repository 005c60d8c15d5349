"""What consumers and the keeper ask of queues, in several steps and commits."""
