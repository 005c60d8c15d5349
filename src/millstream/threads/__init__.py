"""The nouns as threads hold them: log, cursor, queue, room; most are generated from `aio/`."""
