"""The management commands of the Django application."""
