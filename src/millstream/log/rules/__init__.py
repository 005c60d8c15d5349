"""The rules of logs: functions of a transaction and a command."""
