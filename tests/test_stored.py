"""Files of a finished run that somebody wrote in: what is wrong is said, with the file and the place."""

import copy
import json
import shutil

import pytest

from purifl import Experiment, run
from purifl.errors import RunError
from purifl.folders import RunFolder
from purifl.stored import checked_findings
from purifl.sweeps.table import row_of
from tiny import TINY

FOUND = {
    "title": "a figure", "quick": True, "device": "cpu", "runs": 2, "done": 1, "seeds": 1, "complete": 0,
    "seconds": 0.5, "hardware": ["a CPU"],
    "judged": {"gpd-paper": {"verdict": "open", "claims": []}, "gpd": {"verdict": "not", "claims": []}},
}  # fmt: skip
EVENT = {"round": 1, "event": "cut", "client": 0, "neighbour": 1, "malicious": True}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "run"
    run(Experiment.parse(TINY | {"defense": "lower", "rounds": 2, "eval_every": 2}), folder)
    (folder / "events.jsonl").write_text(json.dumps(EVENT) + "\n")
    assert len(RunFolder(folder).result().events) == 1
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def damage(file, place, value):
    """Put ``value`` at ``place`` in a file of one JSON object, or of one a line, whose number then comes first."""
    lines = [
        json.loads(line) for line in (file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()])
    ]
    whole = copy.deepcopy(lines if file.suffix == ".jsonl" else lines[0])
    *above, last = place
    here = whole
    for part in above:
        here = here[part]
    if value is damage:
        del here[last]
    else:
        here[last] = value
    file.write_text("".join(json.dumps(line) + "\n" for line in (whole if file.suffix == ".jsonl" else [whole])))


@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("metrics.jsonl", (1, "test_accuracy"), "x", "row 2.test_accuracy: input should be a valid number"),
        ("metrics.jsonl", (1, "test_accuracy"), float("inf"), "row 2.test_accuracy: input should be a finite number"),
        ("metrics.jsonl", (1, "tracking_error"), damage, "row 2 has no tracking_error"),
        ("metrics.jsonl", (0, "round"), 2, "row 1 is of round 2"),
        ("metrics.jsonl", (0, "trust"), [0.5], "row 1 has trust on 1 edges of"),
        ("metrics.jsonl", (1, "accuracy_by_client"), [1.0], "row 2.accuracy_by_client: input should be"),
        ("metrics.jsonl", (1,), [], "list indices"),
        ("events.jsonl", (0, "neighbour"), 77, "row 1: client 0 has no neighbour 77"),
        ("events.jsonl", (0, "event"), "healed", "row 1.event: input should be 'cut' or 'readmitted'"),
        ("events.jsonl", (0, "round"), 3, "row 1 is of round 3 of 2"),
        ("result.json", ("trust", 0, "cut"), 5, "trust.0.cut: input should be a valid boolean"),
        ("result.json", ("malicious",), [50], "client 50 is named, of"),
        ("result.json", ("histograms",), [[1], [2]], "histograms of 2 clients of"),
        ("result.json", ("histograms", 0), [1], "have more labels than"),
        ("result.json", ("seconds",), None, "seconds: input should be a valid number"),
    ],
)
def test_what_is_damaged_is_named(folder, name, place, value, said):
    damage(folder / name, place, value)
    with pytest.raises(RunError) as caught:
        RunFolder(folder).result()
    assert f"{name} is damaged: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("seconds", "long"), ("test_accuracy", [1]), ("detected_round", damage)])
def test_a_damaged_summary_gives_no_row(folder, key, value):
    assert row_of(RunFolder(folder))["seconds"] > 0
    damage(folder / "result.json", ("summary", key), value)
    with pytest.raises(RunError, match=rf"damaged: summary\.{key}: "):
        row_of(RunFolder(folder))


def test_curves_of_damaged_rounds_give_no_row(folder):
    damage(folder / "metrics.jsonl", (1, "attack_accuracy"), "x")
    with pytest.raises(RunError, match=r"damaged: curves\.attack_accuracy\.0: input should be a valid number"):
        row_of(RunFolder(folder))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no", "^invalid JSON"),
        (100_000 * "[", "^invalid JSON: recursion"),
        ("[]", "^input should be an object"),
        (json.dumps({key: value for key, value in FOUND.items() if key != "runs"}), "^runs: field required"),
        (json.dumps(FOUND | {"done": "x"}), "^done: input should be a valid integer"),
        (json.dumps(FOUND | {"done": 3}), "^done: 3 of 2 runs"),
        (json.dumps(FOUND | {"hardware": [1]}), r"^hardware\.0: input should be a valid string"),
        (json.dumps(FOUND | {"judged": {"gpd": {"verdict": "not"}}}), r"^judged\.gpd-paper: field required"),
        (json.dumps(FOUND | {"judged": {"gpd": {"verdict": "no"}}}), r"^judged\.gpd\.verdict: input should be"),
    ],
)
def test_what_was_found_of_a_figure(text, said):
    assert checked_findings(json.dumps(FOUND).encode(), ("gpd-paper", "gpd")) == FOUND
    with pytest.raises(ValueError, match=said):
        checked_findings(text.encode(), ("gpd-paper", "gpd"))


def test_a_report_on_damaged_runs_ends_with_a_message(purifl, folder, tmp_path):
    damage(folder / "metrics.jsonl", (1, "test_accuracy"), "x")
    code, _, err = purifl("report", str(folder), "--out", str(tmp_path / "report"))
    assert code == 2
    assert "metrics.jsonl is damaged: row 2.test_accuracy" in err
    assert not (tmp_path / "report").exists()
