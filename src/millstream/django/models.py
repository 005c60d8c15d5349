"""No models: Django sends `post_migrate` only to applications that have this module."""
