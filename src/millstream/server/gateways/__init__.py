"""Gateways: foreign protocols, on ports of their own beside HTTP, or on the port of HTTP.

SQS speaks HTTP, so `gateways/sqs/` answers on the port of HTTP, behind the same guard as REST.

A protocol with a port of its own is a folder here and one registration:

1. `gateways/NAME/connection.py`: a subclass of `GatewayConnection`. It gets bytes in `received`,
   tells errors in `refuse`, and hands commands to its `client`, which passes them through
   `server/admission.py`. It decides nothing about rights, quotas or metrics itself.
2. `gateways/NAME/credentials.py`: a `CredentialReader`, which finds a token or a ticket in the first
   bytes, a header, a SASL exchange or a request with its body.
3. The registration: `Serving(path, settings, gateways=[Gateway("NAME", reader, connect, port=...)])`.

The server owns the port, TLS, the count and the bound of connections, and the graceful stop. A node
of a cluster that does not lead hands commands on to the leading node, with the client's credential.
`tests/unit/server/lines.py` has a small protocol of lines that shows all of it, and "Add a protocol" in
CONTRIBUTING.md has the steps.

A page in a browser can send bytes to any port of its machine. So a connection must end at the first
bytes that are not of its protocol.
"""
