"""The nouns as threads hold them: log, cursor, queue, stage, database; generated from `millstream.aio`."""
