"""What Spark writes: tasks stage blocks, the driver publishes them in one commit."""
