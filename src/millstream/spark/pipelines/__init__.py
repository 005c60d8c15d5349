"""Ready pipelines, one module each: archive, replay, compact, report, redrive, route.

Each is a function that takes a Spark session and a store, and answers a summary. What was done is
recorded where the result is (a manifest, a transaction's version, a queue's position), so that a run
that was killed is run again and goes on where it stopped.
"""
