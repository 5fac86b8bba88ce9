"""Five organisations as real peers on this machine, one of them with a backdoor; no server, mutual TLS between them.

They get a new folder each time; the report in it is built from what the peers themselves recorded. `purifl network
create` and `purifl network up` do the same from the command line.
"""

import tempfile
from pathlib import Path

from rich.console import Console

from purifl.experiment import Experiment, read_settings
from purifl.peer.collect import collect
from purifl.peer.network import create, free_hosts
from purifl.peer.watch import up
from purifl.report import write_report


def main() -> float:
    experiment = Experiment.parse(read_settings(Path(__file__).with_suffix(".yaml")))
    folder = Path(tempfile.mkdtemp(prefix="five-organisations-", dir="."))
    network = create(experiment, folder, free_hosts(experiment.clients))
    up(network, Console(stderr=True))
    result = collect(network)
    summary = result.summary()
    print(f"organisation {summary['malicious'][0]} was cut by all others in round {summary['detected_round']}")
    print(f"test accuracy {summary['test_accuracy']:.1%}, attack accuracy {summary['attack_accuracy']:.1%}")
    print(f"report: {write_report([result], folder / 'run' / 'report')}")
    accuracy: float = summary["test_accuracy"]
    return accuracy


if __name__ == "__main__":
    main()
