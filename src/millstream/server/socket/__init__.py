"""The streaming socket: frames of requests in, frames of answers out."""
