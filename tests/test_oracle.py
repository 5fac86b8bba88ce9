"""What a perfect detector would reach, in processes of their own, since it adds to the registries."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

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


STUDY = [row("upper", "ring", 0.5), row("gpd", "ring", 0.4), row("upper", "line", 0.5), row("gpd", "line", 0.495)]
TOLD = row("gpd", "ring", 0.48, cut_in=2)
MISSED = ["--parts", "skewed", "--missed", "--cut-in"]
REFUSED = [
    ([*MISSED, "1"], "1 is not a list of rounds"),
    ([*MISSED, "2,51"], "51 is not a list of rounds"),
    (["--parts", "honest", "--cut-in", "2"], "honest is not one of"),
    (["--parts", "forty", "--cut-in", "2"], "nothing to compare on mnist in forty"),
]
COMMANDS = """
import contextlib, io, json, sys
import oracle

def ended(arguments):
    sys.argv = ["oracle.py", "--study", "study.csv", "--out", "oracle.csv", "--seeds", "1", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            oracle.main()
        except SystemExit as end:
            return end.code, out.getvalue(), err.getvalue()

print(json.dumps([ended(arguments) for arguments in json.loads(sys.argv[1])]))
"""


def python(code, *arguments, folder):
    command, env = [sys.executable, "-c", code, *arguments], os.environ | {"PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_missed_goals_are_compared_with_upper_what_is_there_is_not_run_again_and_what_cannot_be_is_refused(tmp_path):
    write(tmp_path / "study.csv", [{key: each[key] for key in KEY + FOUND} for each in STUDY])
    write(tmp_path / "oracle.csv", [{key: TOLD[key] for key in ("cut_in", *KEY, *FOUND)}])
    commands = [[*MISSED, "2"], *(arguments for arguments, _ in REFUSED)]
    (code, table, _), *refused = python(COMMANDS, json.dumps(commands), folder=tmp_path)
    assert (code, table.splitlines()) == (0, [
        "| setting | cut in round 2 | `gpd` |", "| --- | --- | --- |", "| lie, non-overlap, ring | −2.0 | −10.0 |"
    ])  # fmt: skip
    for (code, _, error), (_, named) in zip(refused, REFUSED, strict=True):
        assert code == 2
        assert named in error


RUNS = """
import json, oracle, study
from purifl import Experiment, run

def result(settings, told=oracle.told):
    usual = study.USUAL | {"dataset": "digits", "seed": 0} | settings
    return run(Experiment.parse(told(usual, "cpu").model_dump() | {"rounds": 4}))

star = {"topology": study.LEAVES[0], "partition": "label-dir"}
upper = result(star | {"attack": "lie", "defense": "upper"}, study.experiment)
fang = {"partition": "non-overlap", "attack": "fang"}
cut = result(fang | {"cut_in": 3})
struck = result(fang | {"cut_in": 2})
oracle.Told.opposed = lambda self, state: None
print(json.dumps({
    "upper": upper.final["accuracy_by_client"],
    "at once": result(star | {"attack": "nobody", "cut_in": 1}).final["accuracy_by_client"],
    "later": result(star | {"attack": "nobody", "cut_in": 4}).final["accuracy_by_client"],
    "malicious": cut.malicious,
    "cuts": [(event["round"], event["client"], event["neighbour"]) for event in cut.events],
    "struck": struck.final["accuracy_by_client"],
    "left": result(fang | {"cut_in": 2}).final["accuracy_by_client"],
}))
"""


def test_who_is_told_cuts_the_attackers_then_and_nobody_else_and_nobody_delayed_is_upper(tmp_path):
    """The first message of who began against everybody is taken back, as `gpd` does."""
    found = python(RUNS, folder=tmp_path)
    benign = set(range(10)) - set(found["malicious"])
    assert {tuple(cut) for cut in found["cuts"]} == {(3, i, j) for i in benign for j in found["malicious"]}
    assert found["at once"] == found["upper"] != found["later"]
    assert found["struck"] != found["left"]
