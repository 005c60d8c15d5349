"""The migrations of the Django application."""
