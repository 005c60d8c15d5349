"""What a queue is made of: values and entities, without any rule about when they change."""
