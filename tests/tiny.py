"""The smallest experiment that still has everything, for tests that run many."""

TINY = {
    "clients": 5,
    "topology": "ring",
    "model": {"name": "mlp", "hidden": 4},
    "attack": {"name": "backdoor-9", "malicious_clients": [1]},
    "defense": {"name": "gpd", "threshold": 0.9},
    "training": {"gradient": "steps", "local_steps": 3},
    "rounds": 5,
}
