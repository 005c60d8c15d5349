"""Schemas: the fields of the JSON values in a log, their types, and how both may change. Pure."""
