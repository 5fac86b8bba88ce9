"""One client on a network: its identity, its messages, its rounds and what it keeps on disk.

Needs the extra ``peer``: gRPC, cryptography and the Prometheus client.
"""
