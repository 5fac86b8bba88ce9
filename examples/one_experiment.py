"""Run one experiment from Python: digits, ten clients, two of them with a backdoor."""

from purifl import Experiment, run


def main() -> float:
    experiment = Experiment(
        attack="backdoor-9", defense="gpd", partition={"name": "label-dir", "alpha": 0.5}, rounds=30
    )
    result = run(experiment)
    summary = result.summary()
    print(f"malicious clients {summary['malicious']} were cut in round {summary['detected_round']}")
    print(f"test accuracy {summary['test_accuracy']:.1%}, attack accuracy {summary['attack_accuracy']:.1%}")
    accuracy: float = summary["test_accuracy"]
    return accuracy


if __name__ == "__main__":
    main()
