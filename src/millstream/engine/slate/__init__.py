"""The SlateDB engine: rows in objects of a bucket, one writer at a time."""
