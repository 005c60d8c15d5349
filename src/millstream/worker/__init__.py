"""Workers: they claim messages, run a handler on each, and end the attempts."""
