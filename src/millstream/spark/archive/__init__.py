"""Archives: Parquet files by log and date, and the tables over them."""
