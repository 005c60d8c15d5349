"""What a server tells of itself: metrics, health, traces."""
