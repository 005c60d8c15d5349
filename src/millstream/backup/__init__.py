"""Backups of a store: points in time in a folder or a bucket, and the way back."""
