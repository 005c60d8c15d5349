"""A local Spark: its Java, its session, and its Python workers."""
