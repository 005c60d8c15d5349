"""Ready pipelines: archive, table, replay, compact, report, redrive and route, a module each.

A pipeline is a function of a Spark session and a store that returns a summary. Progress is recorded
beside the result: in a manifest, in the version of a transaction, or in the position of a queue. So a
killed run is run again, and continues where it stopped.
"""
