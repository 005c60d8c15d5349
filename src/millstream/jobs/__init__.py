"""Jobs: functions that run in the background, on queues."""
