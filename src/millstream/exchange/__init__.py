"""Exchange of records with files, and of messages with queues of other systems.

`export` writes records of logs to JSON Lines, CSV or Parquet; `importing` reads these files, and stores
each record once. The formats keep keys, headers, timestamps and the exact bytes of values.
docs/IMPORT.md describes the fields.
"""
