"""Reading logs: blocks from memory or from the engine, and damage beside them."""
