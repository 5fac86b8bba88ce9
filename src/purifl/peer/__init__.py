"""One client on a network: its identity, its messages, its rounds and what it keeps on disk.

Needs the extra ``peer``: gRPC, BLAKE3, cryptography and the Prometheus client.

gRPC's Python interface has no setting for the lowest TLS version. It speaks 1.2 and 1.3, and a variable that it reads
when it is imported chooses the cipher suites of 1.2 alone: the one named here needs a pre-shared key, which nobody has,
so that 1.2 cannot be agreed upon.
"""

import os

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
