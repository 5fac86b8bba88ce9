"""What a perfect detector would reach, in processes of their own, since it adds to the registries."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from study import FOUND, KEY, USUAL

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def row(defense, topology, accuracy, **changed):
    setting = USUAL | {"dataset": "mnist", "part": "skewed", "topology": topology, "partition": "non-overlap"}
    attack = "lie" if defense == "gpd" else "backdoor-9"
    found = dict.fromkeys(FOUND, 0) | {"test_accuracy": accuracy, "components": accuracy}
    return setting | found | {"attack": attack, "defense": defense, "seed": 0} | changed


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def oracle(folder, *arguments):
    write(folder / "study.csv", [{key: each[key] for key in KEY + FOUND} for each in STUDY])
    write(folder / "oracle.csv", [{key: TOLD[key] for key in ("cut_in", *KEY, *FOUND)}])
    options = ["--study", "study.csv", "--out", "oracle.csv", "--seeds", "1", *arguments]
    command = [sys.executable, BENCHMARKS / "oracle.py", *options]
    env = os.environ | {"PURIFL_DATA": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


STUDY = [
    row(*each)
    for each in [("upper", "ring", 0.5), ("gpd", "ring", 0.4), ("upper", "line", 0.5), ("gpd", "line", 0.495)]
]
TOLD = row("gpd", "ring", 0.48, cut_in=2)


def test_settings_in_which_the_goal_is_missed_are_compared_with_upper_and_what_is_there_is_not_run_again(tmp_path):
    done = oracle(tmp_path, "--parts", "skewed", "--missed", "--cut-in", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "| setting | cut in round 2 | `gpd` |", "| --- | --- | --- |", "| lie, non-overlap, ring | −2.0 | −10.0 |"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--parts", "skewed", "--cut-in", "1"], "1 is not a list of rounds"),
        (["--parts", "honest", "--cut-in", "2"], "honest"),
    ],
)
def test_what_it_cannot_cut_in_or_has_no_goal_is_refused_with_exit_code_2(arguments, named, tmp_path):
    done = oracle(tmp_path, *arguments)
    assert (done.returncode, named in done.stderr, "Traceback" in done.stderr) == (2, True, False)
