"""Amazon SQS: the requests of its clients, as commands on logs and queues."""
