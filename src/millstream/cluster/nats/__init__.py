"""The shared log on NATS JetStream: connections, the server process, and streams."""
