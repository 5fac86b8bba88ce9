"""Results of runs that never were, in every shape a run can have."""

from __future__ import annotations

from purifl import Experiment, Result
from purifl.defenses import defenses

HOSTILE = '<script>alert("x")</script> </script> $\\frac{$ & _ <b>"\''


class HostileDefense(type(defenses.resolve("gpd"))):
    name = HOSTILE


def row(number: int, **values: object) -> dict[str, object]:
    """A round's metrics of four clients, client 3 malicious."""
    tested = {
        "test_accuracy": 0.5 + number / 100,
        "test_accuracy_min": 0.4,
        "test_accuracy_std": 0.01,
        "accuracy_by_client": {"0": 0.4, "1": 0.5 + number / 100, "2": 0.6 + number / 50},
        "attack_accuracy": 0.25,
        "attack_accuracy_all": 0.3,
    }
    always = {
        "tracking_error": 8.0677e-07,
        "gamma_norm": 4.3,
        "missed_edges": 1 if number < 3 else 0,
        "false_alarm_edges": 1,
        "trust": [0.3, 0.25 - 0.05 * number, 0.3, 0.01],
        "benign_components": 1,
    }
    return {"round": number, **tested, **always, **values}


def unevaluated(measured: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in measured.items() if "accuracy" not in key}


def edge(client: int, neighbour: int, trust: float, cut: bool) -> dict[str, object]:
    return {"client": client, "neighbour": neighbour, "trust": trust, "cut": cut}


def event(number: int, client: int, neighbour: int, what: str = "cut") -> dict[str, object]:
    return {"round": number, "event": what, "client": client, "neighbour": neighbour, "malicious": neighbour == 3}


def synthetic(defense: object = "gpd", attack: str = "backdoor-9", clients: int = 4, **settings: object) -> Result:
    """Four clients, client 3 malicious and cut in round 3; client 2 wrongly cuts client 1 in the first round."""
    experiment = Experiment(attack=attack, defense=defense, clients=clients, rounds=4, **settings)
    trust = [edge(0, 1, 0.3, False), edge(0, 3, 0.05, True), edge(1, 0, 0.3, False), edge(2, 1, 0.01, True)]
    history = [row(1), unevaluated(row(2)), row(3), row(4)]
    return Result(experiment, [3], history, [event(1, 2, 1), event(3, 0, 3)], trust, [[5, 0, 7]] * 4, 12.345)


def shifted(by: float, **settings: object) -> Result:
    """The same with another accuracy in every round."""
    result = synthetic(**settings)
    result.history = [
        {**each, "test_accuracy": each["test_accuracy"] + by} if "test_accuracy" in each else each
        for each in result.history
    ]
    return result
