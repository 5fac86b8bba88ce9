import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from rich.console import Console
from typer.main import get_command

from purifl import __version__, cli_output
from purifl.catalogue import _REGISTRIES
from purifl.cli import app
from purifl.engines.pool import available
from purifl.experiment import Experiment
from purifl.folders import RunFolder
from purifl.phases import Phase
from purifl.progress import drawing, reporting
from purifl.runs import run

pytestmark = pytest.mark.usefixtures("_one_thread")

PURIFL = str(Path(sys.executable).with_name("purifl"))
QUICK = ["--set", "model={name: mlp, hidden: 4}", "--set", "training={gradient: steps, local_steps: 3}",
         "--clients", "5", "--rounds", "3"]  # fmt: skip
PROMISED = {
    "test_accuracy", "test_accuracy_min", "attack_accuracy", "detected_round", "missed_edges", "false_alarm_edges",
    "tracking_error", "rounds", "seconds", "seed",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for module in ("cli", "cli_output"):
        monkeypatch.setattr(f"purifl.{module}.out_console", Console(width=120))


@pytest.fixture
def _no_report(monkeypatch):
    monkeypatch.setattr("purifl.report.write_report", lambda _, folder: folder / "index.html")


@pytest.fixture
def _no_training(monkeypatch):
    monkeypatch.setattr("purifl.engines.Engine.gradients", lambda *_: pytest.fail("began to train"))


@pytest.fixture
def understood(purifl, monkeypatch):
    """The experiment that ``purifl run`` makes of its arguments."""

    def call(*args):
        seen = []

        def stop(experiment, *_, **__):
            seen.append(experiment)
            raise KeyboardInterrupt

        monkeypatch.setattr("purifl.runs.run", stop)
        assert purifl("run", *args)[0] == 130
        return seen[0]

    return call


def process(*args, **options):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [PURIFL, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def rows(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def without_time(summary):
    return {
        key: value
        for key, value in summary.items()
        if key not in {"seconds", "round_seconds", "client_seconds", "folder", "report"}
    }


def test_json_is_one_object_on_standard_output_and_progress_is_on_standard_error():
    child = process("run", *QUICK, "--attack", "backdoor-9", "--seed", "4", "--out", "run", "--json")
    out, err = child.communicate()
    assert child.returncode == 0, err
    assert out.count("\n") == 1
    summary = json.loads(out)
    assert summary.keys() >= PROMISED
    assert (summary["rounds"], summary["seed"], summary["defense"]) == (3, 4, "gpd")
    assert 0 <= summary["attack_accuracy"] <= 1
    assert "gpd: round 1/3, accuracy " in err
    assert "gpd: round 3/3" in err
    assert "Warning" not in err
    assert len(rows("run")) == 3
    assert Path(summary["report"]).is_file()


def test_a_run_without_out_goes_to_a_new_folder_under_runs(purifl):
    code, out, err = purifl("run", *QUICK)
    assert code == 0, err
    (folder,) = Path("runs").iterdir()
    assert len(rows(folder)) == 3
    assert re.search(r"gpd .*%", out)
    assert str(folder) in out
    assert "round 3/3" in err
    assert "round" not in out.replace("rounds", "")


@pytest.mark.usefixtures("_no_report")
def test_two_runs_at_once_get_a_folder_each(purifl, monkeypatch):
    class Clock:
        now = staticmethod(lambda: __import__("datetime").datetime(2025, 1, 1))

    monkeypatch.setattr("purifl.cli.datetime", Clock)
    assert [purifl("run", *QUICK)[0] for _ in range(3)] == [0, 0, 0]
    assert len(list(Path("runs").iterdir())) == 3


@pytest.mark.usefixtures("_no_report")
def test_attack_accuracy_is_null_without_an_attack(purifl):
    _, out, _ = purifl("run", *QUICK, "--json")
    summary = json.loads(out)
    assert summary["attack_accuracy"] is None
    assert summary["detected_round"] is None


@pytest.mark.usefixtures("_no_report")
def test_a_profile_is_shown_after_the_summary_where_it_is_asked_for(purifl):
    code, out, err = purifl("run", *QUICK, "--profile")
    assert code == 0, err
    summary, table = out.split("Where the time of a round goes")
    assert "test accuracy" in summary
    shown = re.findall(r"^\W*(\w+)\s.*\d\.\d{3}.*\d\.\d\d.*\d\.\d%", table, re.MULTILINE)
    assert shown == [*get_args(Phase), "all"]
    assert "Where the time" not in purifl("run", *QUICK)[1]


@pytest.mark.usefixtures("_no_report")
def test_a_profile_in_json_adds_up(purifl):
    _, out, _ = purifl("run", *QUICK, "--profile", "--json")
    profile = json.loads(out)["profile"]
    assert list(profile) == list(get_args(Phase))
    assert sum(spent["share"] for spent in profile.values()) == pytest.approx(1)
    for spent in profile.values():
        assert spent["ms_per_round"] == pytest.approx(1000 * spent["seconds"] / 3)
    assert profile["train"]["seconds"] > 0
    assert "profile" not in json.loads(purifl("run", *QUICK, "--json")[1])


@pytest.mark.usefixtures("_no_report")
def test_a_finished_run_is_not_overwritten_without_force(purifl):
    assert purifl("run", *QUICK, "--out", "run")[0] == 0
    before = (Path("run") / "result.json").read_bytes()
    code, out, err = purifl("run", *QUICK, "--seed", "1", "--out", "run")
    assert (code, out) == (2, "")
    assert "error: out: run already holds a finished run; --force replaces it" in err
    assert (Path("run") / "result.json").read_bytes() == before
    code, out, _ = purifl("run", *QUICK, "--seed", "1", "--out", "run", "--force", "--json")
    assert (code, json.loads(out)["seed"]) == (0, 1)


@pytest.mark.usefixtures("_no_report")
def test_force_does_not_touch_a_folder_that_is_not_a_run(purifl):
    Path("mine").mkdir()
    Path("mine", "thesis.tex").write_text("years of work")
    code, _, err = purifl("run", *QUICK, "--out", "mine", "--force")
    assert code == 2
    assert "mine is not empty and not a run folder" in err
    assert [file.name for file in Path("mine").iterdir()] == ["thesis.tex"]


@pytest.mark.usefixtures("_no_report")
def test_resuming_a_finished_run_prints_it_again(purifl):
    _, first, _ = purifl("run", *QUICK, "--out", "run", "--json")
    code, again, _ = purifl("resume", "run", "--json")
    assert code == 0
    assert json.loads(again) == json.loads(first)


GATE = """
import time
from pathlib import Path
from torch import nn

class Gated(nn.Sequential):
    def forward(self, x):
        rows = Path("run/metrics.jsonl")
        done = rows.read_text().count("\\n") if rows.exists() else 0
        while Path("hold").exists() and done >= int(Path("hold").read_text()):
            Path("held").touch()
            time.sleep(0.01)
        return super().forward(x)

def make(shape, classes):
    return Gated(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.fixture
def held(monkeypatch):
    """Starts a real run that stands still after some rounds, and waits until it does."""
    Path("gate.py").write_text(GATE)
    monkeypatch.delitem(sys.modules, "gate", raising=False)
    children = []

    def start(rounds):
        Path("hold").write_text(str(rounds))
        child = process("run", *HELD, "--out", "run")
        children.append(child)
        while child.poll() is None and not Path("held").exists():
            time.sleep(0.01)
        assert child.poll() is None, child.communicate()[1]
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()
    sys.modules.pop("gate", None)


HELD = ["--clients", "5", "--rounds", "4", "--attack", "backdoor-9", "--set", "model=gate:make",
        "--set", "training.gradient=batch", "--set", "defense.threshold=0.9"]  # fmt: skip


@pytest.mark.usefixtures("_no_report")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_resume_and_resumes_to_the_same_bits(purifl, held, how):
    child = held(rounds=2)
    child.send_signal(how)
    out, err = child.communicate()
    assert (child.returncode, out) == (130, "")
    assert "Interrupted after round 2. Continue with: purifl resume run" in err
    assert "Traceback" not in err
    assert [row["round"] for row in rows("run")] == [1, 2]
    Path("hold").unlink()
    code, resumed, err = purifl("resume", "run", "--json")
    assert code == 0
    assert "gpd: round 3/4" in err
    _, straight, _ = purifl("run", *HELD, "--out", "straight", "--json")
    assert without_time(json.loads(resumed)) == without_time(json.loads(straight))
    for name in ("metrics.jsonl", "events.jsonl", "experiment.json"):
        assert Path("run", name).read_bytes() == Path("straight", name).read_bytes()


@pytest.mark.timeout(120)
@pytest.mark.skipif(not available(), reason="no fork here")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_worker_processes_end_quietly_where_all_of_a_group_are_interrupted(how, monkeypatch):
    """As a terminal and `timeout 40 purifl run` do. The parent is held so that workers could speak before they end."""
    monkeypatch.setenv("PURIFL_WORKERS", "2")
    child = process("run", "--clients", "5", "--rounds", "10000", "--out", "run", start_new_session=True)
    try:
        while len(workers := children_of(child.pid)) < 2 or not Path("run", "metrics.jsonl").exists():
            time.sleep(0.01)
        child.send_signal(signal.SIGSTOP)
        os.killpg(child.pid, how)
        time.sleep(0.5)
        child.send_signal(signal.SIGCONT)
        out, err = child.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert (child.returncode, out) == (130, "")
    assert f"Interrupted after round {len(rows('run'))}. Continue with: purifl resume run" in err
    assert "Traceback" not in err
    assert "purifl-0" not in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_an_interruption_before_the_first_round_leaves_nothing_to_resume(held):
    child = held(rounds=0)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert (child.returncode, out) == (130, "")
    assert "nothing was written" in err
    assert "resume" not in err
    assert not Path("run").exists()


def test_an_interrupted_comparison_says_how_to_go_on(purifl, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("purifl.runs.run_or_continue", stop)
    code, out, err = purifl(*COMPARE)
    assert (code, out) == (130, "")
    assert "Continue with: the same command with --out all" in err


def test_a_path_with_blanks_and_brackets_is_said_as_a_shell_needs_it(purifl, monkeypatch, tiny):
    def stop(experiment, folder, **_):
        run(experiment, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr("purifl.runs.run", stop)
    code, _, err = purifl("run", *QUICK, "--out", "my [red] run")
    assert code == 130
    assert "purifl resume 'my [red] run'" in err


COMPARE = ["compare", *QUICK, "--malicious-ratio", "0.2", "--out", "all"]


def test_a_comparison_prints_a_table_and_writes_runs_and_a_report(purifl):
    code, out, err = purifl(*COMPARE, "--defenses", "lower,upper,gpd-paper,gpd")
    assert code == 0, err
    for title in ("test accuracy", "attack accuracy", "attackers cut in", "benign edges cut"):
        assert title in out
    for name in ("lower", "upper", "gpd-paper", "gpd"):
        assert re.search(rf"^\W*{name}\W.*%", out, re.MULTILINE), name
        assert len(rows(Path("all", name))) == 3
        assert f"{name}: round 3/3" in err
    named = re.search(r"^Report to look at: (.*)$", out, re.MULTILINE)
    assert Path(named[1]) == Path("all", "report", "index.html")
    assert Path(named[1]).is_file()


def test_a_report_is_written_of_whatever_runs_a_folder_holds(purifl, tiny, monkeypatch):
    monkeypatch.setattr("purifl.report.prints.FORMATS", ("svg",))
    for seed in (0, 1):
        run(Experiment.parse(tiny(seed=seed, rounds=2)), Path("sweep", "deep", str(seed)))
    RunFolder.create(Path("sweep", "begun"), Experiment.parse(tiny()))
    code, out, err = purifl("report", "sweep", "--out", "page")
    assert code == 0, err
    assert "left out: sweep/begun is not finished; continue it with: purifl resume sweep/begun" in err
    assert f"Report to look at: {Path('page', 'index.html')}" in out
    assert f"Figures to print: {Path('page', 'figures')}" in out
    assert Path("page", "index.html").is_file()
    assert Path("page", "figures", "trust.svg").is_file()
    code, out, _ = purifl("report", Path("sweep", "deep", "0"))
    assert code == 0
    assert Path("sweep", "deep", "0", "report", "index.html").is_file()


@pytest.mark.usefixtures("_no_report")
def test_a_comparison_started_again_goes_on(purifl):
    _, first, _ = purifl(*COMPARE, "--defenses", "lower", "--json")
    code, both, err = purifl(*COMPARE, "--defenses", "lower,gpd", "--json")
    assert code == 0
    lower, gpd = json.loads(both)["results"]
    assert [lower] == json.loads(first)["results"]
    assert gpd["defense"] == "gpd"
    assert "lower: round" not in err
    assert "gpd: round 3/3" in err
    code, _, err = purifl(*COMPARE, "--defenses", "lower,gpd", "--seed", "1")
    assert code == 2
    assert "another experiment" in err
    code, out, _ = purifl(*COMPARE, "--defenses", "lower,gpd", "--seed", "1", "--force", "--json")
    assert [result["seed"] for result in json.loads(out)["results"]] == [1, 1]


@pytest.mark.usefixtures("_no_report")
@pytest.mark.parametrize(
    ("args", "attack", "clients"),
    [
        ([], "backdoor-9", None),
        (["--malicious-ratio", "0.4"], "backdoor-9", None),
        (["--attack", "backdoor-1"], "backdoor-1", None),
        (["file.yaml"], "single-image", [2]),
        (["file.yaml", "--attack", "backdoor-1"], "backdoor-1", None),
    ],
)
def test_a_comparison_is_under_the_attack_it_is_told(purifl, args, attack, clients):
    Path("file.yaml").write_text("attack: {name: single-image, malicious_clients: [2]}")
    code, out, err = purifl("compare", *args, *QUICK, "--defenses", "lower", "--json")
    assert code == 0, err
    (result,) = json.loads(out)["results"]
    assert result["attack"] == attack
    assert clients is None or result["malicious"] == clients


def test_options_and_set_override_the_file(understood):
    Path("file.yaml").write_text("{rounds: 9, seed: 9, clients: 9, attack: {name: backdoor-9, target: 9}}")
    experiment = understood("file.yaml", "--seed", "8", "--set", "clients=7", "--set", "eval_every=6")
    assert (experiment.rounds, experiment.seed, experiment.clients, experiment.eval_every) == (9, 8, 7, 6)
    assert (experiment.attack.name, experiment.attack.target) == ("backdoor-9", 9)


def test_every_option_arrives(understood):
    experiment = understood(
        *("--dataset", "mnist", "--partition", "label-dir", "--alpha", "0.5", "--topology", "ring", "--clients", "6"),
        *("--model", "mlp", "--attack", "backdoor-1", "--malicious-ratio", "0.3", "--malicious-level", "0.7"),
        *("--defense", "gpd-text", "--detector", "similarity", "--rounds", "7", "--seed", "8", "--device", "cuda:1"),
        *("--set", "training.step_size=1e-3", "--set", "attack.malicious_clients=[1, 2]", "--set", "mixing=metropolis"),
    )
    assert experiment == Experiment(
        dataset="mnist",
        partition={"name": "label-dir", "alpha": 0.5},
        topology="ring",
        clients=6,
        model="mlp",
        attack={"name": "backdoor-1", "malicious_ratio": 0.3, "malicious_level": 0.7, "malicious_clients": [1, 2]},
        defense="gpd-text",
        detector="similarity",
        rounds=7,
        seed=8,
        device="cuda:1",
        training={"step_size": 0.001},
        mixing="metropolis",
    )


def test_a_stored_experiment_can_be_run_again(understood, tiny):
    experiment = Experiment.parse(tiny())
    Path("experiment.json").write_text(json.dumps(experiment.to_dict()))
    assert understood("experiment.json") == experiment


def test_alpha_where_it_does_nothing_is_said(purifl, monkeypatch):
    monkeypatch.setattr("purifl.runs.run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert "--alpha does nothing with partition 'iid'" in purifl("run", "--alpha", "0.5")[2]
    assert "does nothing" not in purifl("run", "--alpha", "0.5", "--partition", "label-dir")[2]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--set", "attack.malicious_level=0.5"], "without --attack: attack.malicious_level does nothing"),
        (["--malicious-ratio", "0.3"], "without --attack: --malicious-ratio does nothing"),
        (
            ["--attack", "lie", "--malicious-ratio", "0.3", "--set", "attack.malicious_clients=[1]"],
            "--malicious-ratio does nothing",
        ),
    ],
)
def test_settings_of_attackers_that_do_nothing_are_said(purifl, monkeypatch, args, said):
    monkeypatch.setattr("purifl.runs.run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setenv("COLUMNS", "200")
    assert said in " ".join(purifl("run", *args)[2].split())
    assert "does nothing" not in purifl("run", "--attack", "lie", "--malicious-ratio", "0.3")[2]


@pytest.mark.usefixtures("_no_report")
def test_a_run_that_has_diverged_says_so(purifl):
    settings = ["--model", "mlp", "--rounds", "2", "--clients", "3"]
    assert "has diverged: since round 1" in purifl("run", *settings, "--set", "training.step_size=1e30")[2]
    assert "diverged" not in purifl("run", *settings)[2]


def test_a_run_has_diverged_since_the_last_round_that_was_measured(capsys):
    def noted(*norms):
        history = [{"round": t, "gamma_norm": norm} for t, norm in enumerate(norms, 1)]
        cli_output._note_divergence(SimpleNamespace(history=history, experiment=Experiment()))
        return capsys.readouterr().err

    assert "since round 4" in noted(1.0, None, 1.0, None, None)
    assert not noted(1.0, None, 1.0)
    assert not noted()


@pytest.mark.parametrize("kind", list(_REGISTRIES))
def test_list_shows_everything_there_is(purifl, kind):
    code, out, err = purifl("list", kind, "--json")
    assert (code, err) == (0, "")
    entries = json.loads(out)
    assert [entry["name"] for entry in entries] == list(_REGISTRIES[kind])
    for entry in entries:
        assert entry.keys() == {"name", "summary", "parameters", "reference", "needs"}
        assert entry["summary"]
        assert all(parameter.keys() >= {"name", "default", "description"} for parameter in entry["parameters"])
    code, table, _ = purifl("list", kind)
    assert code == 0
    for entry in entries:
        assert re.search(rf"^\W*{re.escape(entry['name'])}\s", table, re.MULTILINE)


def test_list_without_a_kind_shows_every_kind(purifl):
    code, out, err = purifl("list", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {kind: registry.describe() for kind, registry in _REGISTRIES.items()}
    _, tables, _ = purifl("list")
    assert all(re.search(rf"^\W*{name}\s", tables, re.MULTILINE) for name in ("backdoor-9", "gpd-text", "swin"))


def test_data_check_says_what_was_found(purifl):
    code, out, err = purifl("data", "check", "digits")
    assert (code, err) == (0, "")
    assert out == "digits: 1,437 training and 360 test samples of 1 × 8 × 8, 10 classes\n"


def test_data_fetch_of_embedded_data_fetches_nothing(purifl):
    assert purifl("data", "fetch", "digits") == (0, "digits is embedded; there is nothing to fetch\n", "")


@pytest.mark.parametrize(
    ("args", "shown"),
    [("--help", "compare"), ("run --help", "--defense"), ("list", "small-world"), ("list models", "swin")],
)
def test_help_and_lists_do_not_wait_for_torch(args, shown):
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from purifl.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *args.split()], capture_output=True, text=True, check=True)
    assert shown in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "purifl.glance" in loaded
    assert not loaded & {"torch", "numpy", "scipy", "sklearn", "networkx", "matplotlib", "yaml"}


BATCH_NORM = """
from torch import nn

def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
"""

MISFITS = """
from torch import nn

def failing(shape, classes):
    raise KeyError("hidden")

def narrow(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(63, classes))

def few(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))
"""

MISTAKES = {
    "said twice": (
        ["--rounds", "3", "--set", "rounds=5"],
        ["--set: 'rounds=5'", "--rounds says what rounds is as well"],
    ),
    "a name twice": (["--attack", "fang", "--set", "attack.name=lie"], ["--attack says what attack is as well"]),
    "alpha twice": (
        ["--partition", "label-dir", "--alpha", "1", "--set", "partition.alpha=2"],
        ["--alpha says what partition.alpha is as well"],
    ),
    "all of it": (
        ["--malicious-ratio", "0.3", "--set", "attack={name: lie}"],
        ["--malicious-ratio says what attack.malicious_ratio is as well"],
    ),
    "no value": (["--set", "training.step_size="], ["--set: 'training.step_size='", "null for none"]),
    "yes": (["--set", "rounds=yes"], ["rounds: True", "give a whole number"]),
    "no emoji": (["--model", "a:b:c"], ["model: 'a:b:c'"]),
    "twice": (["twice.yaml"], ["FILE: 'twice.yaml'", "'rounds' is given twice", "line 3"]),
    "only the target": (
        ["--attack", "backdoor-9", "--set", "attack.sources=[8]"],
        ["attack.sources: (8,)", "another label than the target, 8"],
    ),
    "no sources": (
        ["--attack", "backdoor-9", "--set", "attack.sources=[]"],
        ["attack.sources: []", "give 1 or more"],
    ),
    "odd ring": (
        ["--topology", "small-world", "--set", "topology.degree=3"],
        ["topology.degree: 3", "it must be even and under the 10 clients"],
    ),
    "attack": (["--attack", "backdor-9"], ["attack: 'backdor-9'", "did you mean 'backdoor-9'?", "single-image"]),
    "defense": (["--defense", "gdp"], ["defense: 'gdp'", "did you mean 'gpd'?", "upper"]),
    "detector": (["--detector", "historyy"], ["detector: 'historyy'", "did you mean 'history'?", "similarity"]),
    "dataset": (["--dataset", "mnits"], ["dataset: 'mnits'", "did you mean 'mnist'?", "digits"]),
    "partition": (["--partition", "label-dri"], ["partition: 'label-dri'", "did you mean 'label-dir'?", "iid"]),
    "topology": (["--topology", "rign"], ["topology: 'rign'", "did you mean 'ring'?", "complete"]),
    "model": (["--model", "mpl"], ["model: 'mpl'", "did you mean 'mlp'?", "cnn"]),
    "unknown setting": (["--set", "training.bach_size=3"], ["training: 'bach_size'", "did you mean 'batch_size'?"]),
    "set": (["--set", "rounds"], ["--set: 'rounds'", "key.path=value"]),
    "set a date": (["--set", "rounds=2020-13-45"], ["--set: 'rounds=2020-13-45'", "cannot be read as YAML"]),
    "set nothing": (["--set", "=3"], ["--set: '=3'", "key.path=value"]),
    "set yaml": (["--set", "rounds=[3"], ["--set: 'rounds=[3'", "YAML"]),
    "negative alpha": (["--partition", "label-dir", "--alpha", "-1"], ["partition.alpha: -1.0", "greater than 0"]),
    "alpha nan": (["--partition", "label-dir", "--alpha", "nan"], ["partition.alpha: nan", "greater than 0"]),
    "ratio 1": (["--malicious-ratio", "1.0"], ["attack.malicious_ratio: 1.0", "less than 1"]),
    "ratio over 1": (["--malicious-ratio", "1.5"], ["attack.malicious_ratio: 1.5", "less than 1"]),
    "ratio under 0": (["--malicious-ratio", "-0.1"], ["attack.malicious_ratio: -0.1", "greater than or equal to 0"]),
    "ratio rounds to all": (
        ["--attack", "backdoor-9", "--malicious-ratio", "0.99"],
        ["attack.malicious_ratio: 0.99", "between 1 and 9"],
    ),
    "ratio rounds to none": (
        ["--attack", "backdoor-9", "--malicious-ratio", "0.01"],
        ["attack.malicious_ratio: 0.01", "between 1 and 9"],
    ),
    "level": (["--malicious-level", "2"], ["attack.malicious_level: 2", "less than or equal to 1"]),
    "all malicious": (
        ["--attack", "backdoor-9", "--clients", "3", "--set", "attack.malicious_clients=[0, 1, 2]"],
        ["attack.malicious_clients: [0, 1, 2]", "at least one of the 3 clients must be benign"],
    ),
    "more malicious than clients": (
        ["--attack", "backdoor-9", "--clients", "3", "--set", "attack.malicious_clients=[0, 1, 2, 3]"],
        ["attack.malicious_clients: [0, 1, 2, 3]", "from 0 to 2"],
    ),
    "no such client": (
        ["--attack", "backdoor-9", "--set", "attack.malicious_clients=[-1]"],
        ["attack.malicious_clients: [-1]", "from 0 to 9"],
    ),
    "target": (["--attack", "backdoor-9", "--set", "attack.target=99"], ["attack.target: 99", "labels 0 to 9"]),
    "missing data": (["--dataset", "mnist"], ["'mnist' was not found in nodata", "purifl data fetch mnist"]),
    "unwritable": (["--out", "a-file/below"], ["out: a-file/below cannot be written", "a-file is not"]),
    "out is a file": (["--out", "a-file"], ["out: a-file cannot be written", "a-file is not"]),
    "disconnected": (
        ["--topology", "file", "--set", "topology.path=two-parts.txt", "--clients", "4"],
        ["topology: 'file'", "must be connected, it has 2 parts"],
    ),
    "graph of another size": (
        ["--topology", "file", "--set", "topology.path=two-parts.txt"],
        ["clients: 10", "has 4 nodes; use that number"],
    ),
    "no graph": (
        ["--topology", "file", "--set", "topology.path=none.txt"],
        ["none.txt' is not usable", "cannot read a graph"],
    ),
    "graph not given": (["--topology", "file"], ["topology.path: None", "'file' needs it"]),
    "odd regular": (
        ["--topology", "k-regular", "--set", "topology.degree=3", "--clients", "5"],
        ["topology.degree: 3", "must be even"],
    ),
    "malformed file": (["malformed.yaml"], ["FILE: 'malformed.yaml'", "cannot be read as YAML"]),
    "missing file": (["missing.yaml"], ["FILE: 'missing.yaml'", "No such file"]),
    "file of a list": (["list.yaml"], ["FILE: 'list.yaml'", "mapping of settings"]),
    "rounds": (["--rounds", "0"], ["rounds: 0", "greater than or equal to 1"]),
    "clients": (["--clients", "1"], ["clients: 1", "greater than or equal to 2"]),
    "seed": (["--seed", "-1"], ["seed: -1", "greater than or equal to 0"]),
    "device": (["--device", "gpu"], ["device: 'gpu'", "'cpu', 'cuda' or 'cuda:N'"]),
    "no such GPU": (["--device", "cuda:99"], ["device: 'cuda:99'", "use 'cpu'"]),
    "running statistics": (["--model", "norms:make"], ["model: 'Sequential'", "BatchNorm1d", "use GroupNorm"]),
    "model of bad syntax": (
        ["--model", "unclosed:make"],
        ["model: 'unclosed:make'", "SyntaxError", "unclosed.py, line 1"],
    ),
    "model that fails": (["--model", "misfits:failing"], ["model: 'misfits:failing'", "KeyError: 'hidden'", "line 5"]),
    "model of other inputs": (
        ["--model", "misfits:narrow"],
        ["model: 'misfits:narrow'", "(2, 1, 8, 8)", "2x64 and 63x10"],
    ),
    "model of other classes": (["--model", "misfits:few"], ["model: 'misfits:few'", "the 10 classes, not (2, 7)"]),
    "no such factory": (["--model", "norms:makke"], ["model: 'norms:makke'", "package.module:factory"]),
    "no tracking": (
        ["--set", "training.algorithm=dsgd", "--defense", "gpd"],
        ["training.algorithm: 'dsgd'", "defense 'gpd' needs 'dsgt'"],
    ),
    "too many clients": (["--clients", "1438", "--topology", "ring"], ["clients: 1438", "at most 1437"]),
}


@pytest.fixture
def _mistakes_can_be_made(monkeypatch):
    monkeypatch.setenv("PURIFL_DATA", "nodata")
    Path("nodata").mkdir()
    Path("a-file").touch()
    Path("two-parts.txt").write_text("0 1\n2 3\n")
    Path("malformed.yaml").write_text("rounds: [3\nseed: }")
    Path("list.yaml").write_text("- rounds\n")
    Path("twice.yaml").write_text("attack: lie\nrounds: 3\nrounds: 30\n")
    Path("norms.py").write_text(BATCH_NORM)
    Path("misfits.py").write_text(MISFITS)
    Path("unclosed.py").write_text("make = (\n")
    yield
    for module in ("norms", "misfits"):
        sys.modules.pop(module, None)


def assert_one_helpful_message(code, out, err, parts):
    assert code == 2, err
    assert out == ""
    assert err.count("error:") == 1, err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    for part in parts:
        assert part in err, err


@pytest.mark.usefixtures("_mistakes_can_be_made", "_no_training")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_with_one_helpful_message_before_any_training(purifl, mistake):
    args, parts = MISTAKES[mistake]
    out = [] if "--out" in args else ["--out", "new/run"]
    before = sorted(Path().rglob("*"))
    assert_one_helpful_message(*purifl("run", *args, *out), parts)
    assert [path for path in sorted(Path().rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("run --rounds x", "'--rounds': 'x' is not a whole number"),
        ("run --seed 1.5", "'--seed': '1.5' is not a whole number"),
        ("run --alpha y", "'--alpha': 'y' is not a number"),
        ("reproduce table-3 --seeds z", "'--seeds': 'z' is not a whole number"),
        ("sweep none.yaml --workers ''", "'--workers': '' is not a whole number"),
        ("reproduce table-3 --no-run --workers 0", "'--workers': '0' is less than 1"),
        ("network renew federation 0 --days 0", "'--days': '0' is less than 0.01"),
    ],
)
def test_what_should_be_a_number_is_refused_with_what_was_given(purifl, given, said):
    code, _, err = purifl(*shlex.split(given))
    assert code == 2
    assert said in err


@pytest.mark.usefixtures("_mistakes_can_be_made", "_no_training")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(purifl):
    assert_one_helpful_message(*purifl("run", "--device", "cuda"), ["device: 'cuda'", "0 CUDA devices; use 'cpu'"])


@pytest.mark.usefixtures("_mistakes_can_be_made", "_no_training")
@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["resume", "nodata"], ["nodata is not a run folder", "no experiment.json"]),
        (["resume", "missing"], ["missing is not a run folder", "no experiment.json"]),
        (["compare", "--defenses", "lower,gdp"], ["defense: 'gdp'", "did you mean 'gpd'?"]),
        (["compare", "--defenses", ","], ["defenses: ','", "separated by commas"]),
        (["compare", "--attack", "backdor-9"], ["attack: 'backdor-9'", "did you mean 'backdoor-9'?"]),
        (["compare", "--out", "a-file"], ["out: a-file cannot be written"]),
        (["report", "a-file"], ["a-file is not a folder"]),
        (["report", "."], ["there is no run folder at or under it"]),
        (["data", "check", "mnits"], ["dataset: 'mnits'", "did you mean 'mnist'?"]),
        (["data", "fetch", "mnits"], ["dataset: 'mnits'", "did you mean 'mnist'?"]),
        (["data", "check", "cifar-10"], ["'cifar-10' was not found in nodata", "purifl data fetch cifar-10"]),
    ],
    ids=" ".join,
)
def test_the_other_commands_are_as_helpful(purifl, args, parts):
    before = sorted(Path().rglob("*"))
    assert_one_helpful_message(*purifl(*args), parts)
    assert sorted(Path().rglob("*")) == before


@pytest.mark.usefixtures("_no_report")
def test_a_mismatched_checkpoint_is_refused(purifl, tiny):
    def stop(row, _):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Experiment.parse(tiny()), "run", on_round=stop)
    stored = Path("run", "experiment.json")
    stored.write_text(json.dumps(json.loads(stored.read_text()) | {"seed": 1}))
    assert_one_helpful_message(*purifl("resume", "run"), ["run/checkpoint.safetensors does not match", "seed"])
    assert len(rows("run")) == 2


@pytest.mark.usefixtures("_mistakes_can_be_made")
@pytest.mark.parametrize("mistake", ["attack", "disconnected"])
def test_a_real_process_ends_the_same_way(mistake):
    args, parts = MISTAKES[mistake]
    child = process("run", *args, "--json")
    out, err = child.communicate()
    assert_one_helpful_message(child.returncode, out, err, parts)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "args", [["run", "--ruonds", "3"], ["run", "--rounds", "three"], ["list", "attackss"], ["resume"], ["nonsense"]]
)
def test_what_is_no_command_at_all_also_ends_with_code_2(purifl, args):
    code, out, err = purifl(*args)
    assert (code, out) == (2, "")
    assert "Usage: purifl" in err
    assert "Traceback" not in err


ROW = {"test_accuracy": 0.5, "attack_accuracy": 0.25}


def test_progress_on_a_terminal_is_a_bar_with_round_accuracy_and_time_left():
    text = io.StringIO()
    with reporting("gpd", 3, Console(file=text, force_terminal=True, width=120)) as on_round:
        on_round({"round": 1, **ROW}, None)
        on_round({"round": 2}, None)
    assert re.search(
        r"gpd.*2/3.*accuracy 50\.0%, attack 25\.0%.*left.*:\d\d", re.sub(r"\x1b\[[\d;?]*\w", "", text.getvalue())
    )


def test_progress_elsewhere_is_plain_lines_with_the_latest_accuracy_at_both_ends_and_now_and_then(monkeypatch):
    clock = iter([0, 1, 2, 9, 10])
    monkeypatch.setattr("purifl.progress.time.monotonic", lambda: next(clock))
    text = io.StringIO()
    with reporting("gpd", 4, Console(file=text)) as on_round:
        on_round({"round": 1}, None)
        on_round({"round": 2, **ROW}, None)
        for k in (3, 4):
            on_round({"round": k}, None)
    assert text.getvalue().splitlines() == [
        "gpd: round 1/4, 3 s left",
        "gpd: round 3/4, accuracy 50.0%, attack 25.0%, 3 s left",
        "gpd: round 4/4, accuracy 50.0%, attack 25.0%, 0 s left",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_drawing_figures_shows_a_bar_on_a_terminal_and_nothing_elsewhere(terminal):
    text = io.StringIO()
    with drawing(Console(file=text, force_terminal=terminal, width=120)) as on_setup:
        for done in range(3):
            on_setup(done, 2)
    assert bool(re.search(r"figures to print.*2/2", re.sub(r"\x1b\[[\d;?]*\w", "", text.getvalue()))) == terminal
    assert bool(text.getvalue().strip()) == terminal


def test_the_defaults_that_help_shows_are_those_of_an_experiment():
    """Help has them written out, since it does not wait for torch."""
    options = get_command(app).commands["run"].params
    shown = {option.name: option.show_default for option in options if isinstance(option.show_default, str)}
    usual, skewed, attacked = Experiment(), Experiment(partition="label-dir"), Experiment(attack="backdoor-9")
    assert shown == {
        **{kind: getattr(usual, kind).name for kind in ("dataset", "partition", "topology", "attack", "defense")},
        **{name: str(getattr(usual, name)) for name in ("clients", "rounds", "seed", "device")},
        "alpha": str(skewed.partition.alpha),
        "malicious_ratio": str(attacked.attack.malicious_ratio),
        "malicious_level": str(attacked.attack.malicious_level),
    }


def test_the_version_can_be_asked_for(purifl):
    assert purifl("--version") == (0, f"{__version__}\n", "")


def test_help_names_what_can_be_chosen_and_options_without_effect_are_said(tmp_path):
    env = dict(os.environ, COLUMNS="200", OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "purifl", "run"]
    shown = subprocess.run([*command, "--help"], env=env, capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in ("equivocate", "fed-recover", "small-world", "quantity-dir", "swin"))
    args = ["--malicious-ratio", "0.3", "--model", "mlp", "--rounds", "1", "--json"]
    done = subprocess.run([*command, *args], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--malicious-ratio does nothing" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("args", [["list"], ["run", *QUICK, "--json"]], ids=["list", "run"])
def test_an_output_that_is_full_ends_with_a_word(args):
    with open("/dev/full", "w") as full:
        done = subprocess.run([PURIFL, *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("error: the output cannot be used: No space left on device")
    assert "Traceback" not in done.stderr


def test_what_a_terminal_has_no_character_for_costs_no_result():
    done = subprocess.run(
        [PURIFL, "run", *QUICK], env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert b"Report to look at" in done.stdout
