"""The data source that Spark reads: batches, streams and tables."""
