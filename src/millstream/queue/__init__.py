"""Queues: who does the work. Messages of logs are routed here, claimed, and finished or failed."""
