"""The values of logs: heads, cursors, producers, blocks, names."""
