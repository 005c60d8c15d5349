"""Copies: what one copy of a log hands to another, and what the other takes over."""
