"""Queues of other systems whose waiting messages move into a queue of ours.

A message is stored in our queue first, and removed from its source when it is durable. A crash in
between leaves the message in both places; the next run recognises the id of the message. The packages of the sources
are optional. No module here loads a pickle: such a value is moved as bytes.
"""
