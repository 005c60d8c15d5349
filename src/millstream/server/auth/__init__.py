"""Authentication and rights: tokens, tickets, permissions and quotas."""
