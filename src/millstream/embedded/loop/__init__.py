"""The embedded session of an event loop: claims, feeds and waits without a thread each."""
