"""The observation of a server: metrics, health, live view, traces."""
