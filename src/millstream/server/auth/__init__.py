"""Who asks, and what they may do: tokens, tickets, permissions, quotas."""
