import contextlib
import itertools
import json
import math
import multiprocessing
import pickle
import random
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from purifl import Experiment, resume, run
from purifl.comparison import claim, experiments
from purifl.defenses import defenses
from purifl.errors import BusyError, ConfigError, RunError
from purifl.folders import RunFolder
from purifl.runs import run_or_continue
from purifl.simulation import Simulation

pytestmark = pytest.mark.usefixtures("_one_thread")

GPDS = ["gpd", "gpd-paper", "gpd-text"]
FILES = {"experiment.json", "metrics.jsonl", "events.jsonl", "checkpoint.safetensors", "result.json"}


class Stop(BaseException):
    """Ends a run the way nothing in it catches."""


def stop_after(rounds):
    def on_round(row, _):
        if row["round"] == rounds:
            raise Stop

    return on_round


def interrupted(experiment, folder, rounds):
    with pytest.raises(Stop):
        run(experiment, folder, on_round=stop_after(rounds))
    return folder


def rows(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def assert_same_run(one, other):
    """Every row, event and tensor has the same bits, and so has the result but for its time and place."""
    for name in ("experiment.json", "metrics.jsonl", "events.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    states = [load_file(folder / "checkpoint.safetensors") for folder in (one, other)]
    assert states[0].keys() == states[1].keys()
    for key, tensor in states[0].items():
        given = states[1][key]
        assert (tensor.dtype, tensor.shape) == (given.dtype, given.shape), key
        assert tensor.numpy().tobytes() == given.numpy().tobytes(), key
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    for result in results:
        del result["seconds"], result["round_seconds"]
        for key in ("seconds", "round_seconds", "client_seconds", "folder"):
            del result["summary"][key]
    assert results[0] == results[1]


@pytest.fixture
def experiment(tiny):
    return Experiment.parse(tiny())


@pytest.fixture
def finished(experiment, tmp_path):
    run(experiment, tmp_path / "straight")
    return tmp_path / "straight"


def test_a_run_folder_holds_the_experiment_rows_events_checkpoint_and_result(experiment, tmp_path):
    result = run(experiment, tmp_path / "run")
    folder = tmp_path / "run"
    assert set(contents(folder)) == FILES
    assert Experiment.parse(json.loads((folder / "experiment.json").read_text())) == experiment
    assert [row["round"] for row in rows(folder)] == [1, 2, 3, 4, 5]
    assert rows(folder) == result.history
    assert rows(folder, "events.jsonl") == result.events
    assert {event["event"] for event in result.events} == {"cut"}
    assert any(event["malicious"] for event in result.events)
    assert load_file(folder / "checkpoint.safetensors")["round"] == 5
    assert json.loads((folder / "result.json").read_text())["summary"] == result.summary()
    assert RunFolder(folder).result() == result


def test_rows_and_checkpoint_can_be_read_while_running(experiment, tmp_path):
    seen = []

    def on_round(row, _):
        assert rows(tmp_path)[-1] == row
        assert all(event["round"] <= row["round"] for event in rows(tmp_path, "events.jsonl"))
        assert not (tmp_path / "result.json").exists()
        seen.append((len(rows(tmp_path)), int(load_file(tmp_path / "checkpoint.safetensors")["round"])))

    run(experiment, tmp_path, on_round=on_round)
    assert seen == [(k, k) for k in range(1, 6)]


def test_nothing_is_written_without_a_folder(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(experiment)
    assert result.folder is None
    assert result.summary()["folder"] is None
    assert not contents(tmp_path)


def test_one_seed_gives_one_run_and_another_seed_another(tiny, finished, tmp_path):
    run(Experiment.parse(tiny()), tmp_path / "again")
    assert_same_run(finished, tmp_path / "again")
    run(Experiment.parse(tiny(seed=1)), tmp_path / "other")
    tensors = [load_file(folder / "checkpoint.safetensors")["theta"] for folder in (finished, tmp_path / "other")]
    assert not torch.equal(*tensors)
    assert rows(finished) != rows(tmp_path / "other")


def test_the_last_round_is_evaluated_whatever_eval_every_says(tiny, finished, tmp_path):
    result = run(Experiment.parse(tiny(eval_every=2)), tmp_path / "sparse")
    assert [row["round"] for row in result.history if "test_accuracy" in row] == [2, 4, 5]
    assert result.final == rows(finished)[-1]


def test_a_run_is_replaced_only_with_force(experiment, tiny, finished):
    before = contents(finished)
    with pytest.raises(RunError, match=r"already holds a finished run; --force"):
        run(experiment, finished)
    assert contents(finished) == before
    other = Experiment.parse(tiny(seed=1, rounds=2))
    run(other, finished, force=True)
    assert RunFolder(finished).experiment() == other
    assert [row["round"] for row in rows(finished)] == [1, 2]
    assert set(contents(finished)) == FILES


def test_an_unfinished_run_is_refused_with_the_way_to_continue_it(experiment, tmp_path):
    folder = interrupted(experiment, tmp_path / "run", 2)
    before = contents(folder)
    with pytest.raises(RunError, match=re.escape(f"purifl resume {folder}")):
        run(experiment, folder)
    assert contents(folder) == before


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_not_a_run_is_never_touched(experiment, tmp_path, force):
    (tmp_path / "metrics.jsonl").write_text("somebody's work")
    before = contents(tmp_path)
    with pytest.raises(RunError, match="not a run folder"):
        run(experiment, tmp_path, force=force)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("taken", ["finished", "foreign", "below a file"])
def test_a_folder_that_cannot_be_used_is_refused_before_any_training(
    experiment, finished, tmp_path, monkeypatch, taken
):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    out = {"finished": finished, "foreign": tmp_path / "foreign", "below a file": tmp_path / "foreign" / "file" / "x"}
    monkeypatch.setattr("purifl.runs.Simulation", lambda _: pytest.fail("began to train"))
    with pytest.raises(RunError, match="out: "):
        run(experiment, out[taken])


def test_a_mistake_found_late_leaves_no_folder(tiny, tmp_path):
    attack = {"name": "backdoor-9", "malicious_clients": [7]}
    with pytest.raises(ConfigError, match=r"attack\.malicious_clients"):
        run(Experiment.parse(tiny(attack=attack)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mistake_found_late_leaves_an_older_run_alone(tiny, finished):
    before = contents(finished)
    attack = {"name": "backdoor-9", "malicious_clients": [7]}
    with pytest.raises(ConfigError, match=r"attack\.malicious_clients"):
        run(Experiment.parse(tiny(attack=attack)), finished, force=True)
    assert contents(finished) == before


def test_resuming_a_finished_run_gives_its_result(experiment, tmp_path):
    result = run(experiment, tmp_path / "run")
    before = contents(tmp_path / "run")
    assert resume(tmp_path / "run", on_round=lambda *_: pytest.fail("trained again")) == result
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("rounds", [1, 2, 4, 5])
@pytest.mark.parametrize("defense", GPDS)
def test_an_interrupted_run_resumes_to_the_same_bits(tiny, tmp_path, defense, rounds):
    experiment = Experiment.parse(tiny(defense={"name": defense, "threshold": 0.9}))
    run(experiment, tmp_path / "straight")
    assert rows(tmp_path / "straight", "events.jsonl")
    folder = interrupted(experiment, tmp_path / "stopped", rounds)
    seen = []
    result = resume(folder, on_round=lambda row, _: seen.append(row["round"]))
    assert seen == list(range(rounds + 1, 6))
    assert [row["round"] for row in result.history] == [1, 2, 3, 4, 5]
    assert_same_run(tmp_path / "straight", folder)


@pytest.mark.parametrize("records", ["dense", "log", "disk"])
@pytest.mark.parametrize("defense", [*({"name": name} for name in GPDS), {"name": "gpd", "keep": 0}], ids=str)
def test_however_records_are_kept_a_run_resumes_to_the_same_bits(tiny, tmp_path, defense, records):
    experiment = Experiment.parse(tiny(defense={**defense, "threshold": 0.9, "records": records}))
    run(experiment, tmp_path / "straight")
    first = rows(tmp_path / "straight", "events.jsonl")[0]["round"]
    for stop in (first - 1, first + 1) if "keep" in defense else (first - 1,):  # what was left is taken back after it
        folder = interrupted(experiment, tmp_path / str(stop), stop)
        resume(folder)
        assert_same_run(tmp_path / "straight", folder)


@pytest.mark.parametrize(
    "change",
    [
        {"defense": "lower", "detector": "similarity"},
        {"defense": "upper"},
        {"defense": "lower", "training": {"algorithm": "dsgd", "gradient": "batch"}},
        {"attack": {"name": "single-image", "malicious_level": 0.5}, "training": {"initial": "different"}},
        {"partition": "label-dir", "topology": "erdos-renyi", "eval_every": 3},
    ],
    ids=str,
)
def test_other_set_ups_resume_to_the_same_bits(tiny, tmp_path, change):
    experiment = Experiment.parse(tiny(**change))
    run(experiment, tmp_path / "straight")
    resume(interrupted(experiment, tmp_path / "stopped", 2))
    assert_same_run(tmp_path / "straight", tmp_path / "stopped")


def test_a_run_stopped_after_every_round_resumes_to_the_same_bits(experiment, finished, tmp_path):
    folder = interrupted(experiment, tmp_path / "stopped", 1)
    for rounds in range(2, 6):
        with pytest.raises(Stop):
            resume(folder, on_round=stop_after(rounds))
    resume(folder)
    assert_same_run(finished, folder)


@pytest.fixture
def mortal(monkeypatch):
    """Sets the write, torn in the middle, or the sync to disk at which the process dies; None lets it live."""
    left = None
    write_text = Path.write_text

    def die_at(moment):
        nonlocal left
        left = moment

    def due():
        nonlocal left
        left = None if left is None else left - 1
        return left == -1

    def torn_text(path, text):
        dying = due()
        write_text(path, text[: len(text) // 2] if dying else text)
        if dying:
            raise Stop

    def torn_tensors(tensors, path, metadata):
        save_file(tensors, path, metadata=metadata)
        if due():
            path.write_bytes(path.read_bytes()[:-50])
            raise Stop

    def sync(_):
        if due():
            raise Stop

    monkeypatch.setattr("purifl.folders.Path.write_text", torn_text)
    monkeypatch.setattr("purifl.folders.save_file", torn_tensors)
    monkeypatch.setattr("purifl.folders.os.fsync", sync)
    return die_at


def test_a_run_that_dies_in_any_write_resumes_to_the_same_bits(tiny, tmp_path, mortal):
    experiment = Experiment.parse(tiny(rounds=3))
    run(experiment, tmp_path / "straight")
    deaths = 0
    while True:
        folder = tmp_path / f"died-{deaths}"
        mortal(deaths)
        try:
            run(experiment, folder)
            break
        except Stop:
            deaths += 1
        for again in (deaths % 5, None):
            mortal(again)
            with contextlib.suppress(Stop):
                resume(folder) if (folder / "experiment.json").exists() else run(experiment, folder)
        assert_same_run(tmp_path / "straight", folder)
    begin, each_round, finish = 2, 3, 2  # a round: its row, a checkpoint, and that this is on the disk
    with_events = len({event["round"] for event in RunFolder(tmp_path / "straight").rows("events.jsonl")})
    assert deaths == begin + 3 * each_round + with_events + finish


def test_kill_9_at_any_moment_loses_no_bit(tiny, tmp_path):
    moments = random.Random(9)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["purifl.runs", "sklearn.datasets", "sklearn.model_selection"])
    for defense in GPDS:
        experiment = Experiment.parse(tiny(defense={"name": defense, "threshold": 0.9}, rounds=12))
        run(experiment, tmp_path / defense)
        folder = tmp_path / f"{defense}-killed"
        for wanted in (0, 0, 2, 5, 8):
            child = start(context, experiment, folder)
            wait_for_rows(folder, wanted, child)
            time.sleep(moments.uniform(0, 0.03))
            child.kill()
            child.join()
            assert child.exitcode in {0, -signal.SIGKILL}
        child = start(context, experiment, folder)
        child.join()
        assert child.exitcode == 0
        assert_same_run(tmp_path / defense, folder)


def start(context, experiment, folder):
    """A process that begins the run, or takes up what an earlier one left of it."""
    begun = (folder / "experiment.json").exists()
    target, args = (resume, (folder,)) if begun else (run, (experiment, folder))
    child = context.Process(target=target, args=args)
    child.start()
    return child


def wait_for_rows(folder, count, child):
    file = folder / "metrics.jsonl"
    while child.is_alive() and not (file.exists() and file.read_bytes().count(b"\n") >= count):
        time.sleep(0.001)


def test_a_torn_last_line_and_rows_beyond_the_checkpoint_are_written_again(experiment, finished, tmp_path):
    folder = interrupted(experiment, tmp_path / "stopped", 3)
    fourth = {name: [line for line in (finished / name).read_text().splitlines(True) if '"round": 4' in line]
              for name in ("metrics.jsonl", "events.jsonl")}  # fmt: skip
    assert fourth["metrics.jsonl"]
    with (folder / "metrics.jsonl").open("a") as out:
        out.write(fourth["metrics.jsonl"][0] + '{"round": 5, "test_ac')
    with (folder / "events.jsonl").open("a") as out:
        out.writelines(['{"round": 4, "event": "cut", "client": 3, "neighbour": 4, "malicious": false}\n', '{"rou'])
    resume(folder)
    assert_same_run(finished, folder)


def test_left_over_new_files_are_harmless(experiment, finished, tmp_path):
    folder = interrupted(experiment, tmp_path / "stopped", 3)
    for name in FILES:
        (folder / f"{name}.new").write_text("torn")
    resume(folder)
    assert_same_run(finished, folder)
    (tmp_path / "barely").mkdir()
    (tmp_path / "barely" / "experiment.json.new").write_text("{")
    run(experiment, tmp_path / "barely")
    assert_same_run(finished, tmp_path / "barely")


def edit_experiment(folder):
    file = folder / "experiment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"seed": 7, "rounds": 9}))


def reshape(folder):
    meta = RunFolder(folder)
    experiment = meta.experiment()
    state, seconds = meta.load(experiment)
    meta.save(state | {"theta": state["theta"][:, :-1].contiguous()}, experiment, seconds)


def lose_a_tensor(folder):
    meta = RunFolder(folder)
    experiment = meta.experiment()
    state, seconds = meta.load(experiment)
    del state["defense.records"]
    meta.save(state, experiment, seconds)


def truncate(folder):
    file = folder / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickled(folder):
    (folder / "checkpoint.safetensors").write_bytes(pickle.dumps({"theta": [1, 2, 3]}))


def somebody_elses(folder):
    save_file({"theta": torch.zeros(3)}, folder / "checkpoint.safetensors")


def lose_rows(folder):
    file = folder / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(True)[:-1]))


def garble_rows(folder):
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text().replace('{"round": 2', '{"round" 2'))


def break_experiment(folder):
    (folder / "experiment.json").write_text('{"rounds": ')


def list_experiment(folder):
    (folder / "experiment.json").write_text("[1, 2]")


def misspell_experiment(folder):
    file = folder / "experiment.json"
    file.write_text(file.read_text().replace('"rounds"', '"round"'))


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (edit_experiment, ["checkpoint.safetensors does not match experiment.json", "rounds", "seed"]),
        (reshape, ["checkpoint does not match", "theta"]),
        (lose_a_tensor, ["checkpoint does not match", "defense.records"]),
        (truncate, ["checkpoint.safetensors is damaged"]),
        (pickled, ["checkpoint.safetensors is damaged"]),
        (somebody_elses, ["checkpoint.safetensors does not match experiment.json"]),
        (lose_rows, ["metrics.jsonl", "round 2"]),
        (garble_rows, ["metrics.jsonl is damaged"]),
        (break_experiment, ["experiment.json is damaged"]),
        (list_experiment, ["experiment.json is damaged"]),
        (misspell_experiment, ["experiment.json is damaged", "'round'", "did you mean 'rounds'?"]),
    ],
)
def test_a_folder_that_does_not_fit_together_is_refused_and_left_as_it_is(experiment, tmp_path, damage, parts):
    folder = interrupted(experiment, tmp_path / "run", 2)
    damage(folder)
    before = contents(folder)
    with pytest.raises(RunError) as caught:
        resume(folder)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert contents(folder) == before


def test_a_damaged_result_is_refused(finished):
    (finished / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        resume(finished)


@pytest.mark.parametrize("there", [False, True])
def test_an_empty_or_missing_folder_cannot_be_resumed(tmp_path, there):
    folder = tmp_path / "nothing"
    if there:
        folder.mkdir()
    with pytest.raises(RunError, match=r"not a run folder: it has no experiment\.json"):
        resume(folder)
    assert folder.exists() == there


def test_without_its_events_a_run_is_not_resumed(experiment, tmp_path):
    folder = interrupted(experiment, tmp_path / "run", 2)
    (folder / "events.jsonl").unlink()
    with pytest.raises(RunError, match=r"events\.jsonl is not there any more"):
        resume(folder)


def test_what_a_killed_process_was_writing_is_removed(experiment, tmp_path):
    folder = interrupted(experiment, tmp_path / "run", 2)
    (folder / ".tmpAbC123").write_bytes(b"half a checkpoint")
    resume(folder)
    assert not (folder / ".tmpAbC123").exists()


def test_settings_are_no_experiment():
    with pytest.raises(ConfigError, match=r"experiment: .* give an Experiment"):
        run({"attack": "lie"})


def test_what_a_peer_keeps_is_no_run_to_resume(experiment, tmp_path):
    """It would be a simulation of all clients from then on, and no state for the peer."""
    folder = RunFolder.create(tmp_path / "run", experiment)
    folder.keep_for_peer()
    with pytest.raises(RunError, match=r"run is what a peer of a federation keeps; go on with purifl peer"):
        resume(folder.path)
    assert not folder.finished


def test_the_result_of_an_unfinished_run_is_refused(experiment, tmp_path):
    with pytest.raises(RunError, match="not finished"):
        RunFolder(interrupted(experiment, tmp_path / "run", 2)).result()


def test_the_summary_has_what_the_requirements_list(tiny, experiment):
    summary = run(experiment).summary()
    assert summary["rounds"] == 5
    assert summary["seed"] == 0
    assert summary["seconds"] > 0
    assert summary["malicious"] == [1]
    assert 0 <= summary["test_accuracy_min"] <= summary["test_accuracy"] <= 1
    assert 0 <= summary["attack_accuracy"] <= 1
    assert summary["missed_edges"] == 0
    assert summary["tracking_error"] >= 0
    honest = run(Experiment.parse(tiny(attack="none"))).summary()
    assert honest["attack_accuracy"] is None
    assert honest["detected_round"] is None


def test_the_detected_round_is_the_first_with_every_attacker_cut(experiment):
    result = run(experiment)
    cuts = {(e["client"], e["neighbour"]): e["round"] for e in result.events if e["malicious"]}
    assert set(cuts) == {(0, 1), (2, 1)}
    assert result.detected_round == max(cuts.values())
    assert result.final["false_alarm_edges"] == sum(not e["malicious"] for e in result.events)


@pytest.mark.parametrize("defense", ["lower", "upper"])
def test_nothing_is_detected_where_nobody_looks(tiny, defense):
    assert run(Experiment.parse(tiny(defense=defense))).detected_round is None


def test_seconds_go_on_counting_after_an_interruption(experiment, tmp_path):
    folder = interrupted(experiment, tmp_path / "run", 4)
    meta = RunFolder(folder)
    state, seconds = meta.load(experiment)
    assert seconds > 0
    meta.save(state, experiment, 1000.0)
    assert 1000 < resume(folder).seconds < 2000


def test_a_model_that_is_no_longer_finite_is_stored_as_null(tiny, tmp_path):
    experiment = Experiment.parse(tiny(training={"step_size": 1e30}, rounds=3))
    run(experiment, tmp_path / "run")
    final = json.loads(
        (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1],
        parse_constant=lambda name: pytest.fail(f"{name} is no JSON"),
    )
    assert final["tracking_error"] is None
    assert final["test_accuracy"] == 0


def test_an_experiment_is_brought_to_life_as_it_says(tiny):
    simulation = Simulation(Experiment.parse(tiny()))
    assert simulation.malicious == [1]
    assert [len(h) for h in simulation.histograms] == [10] * 5
    assert sum(map(sum, simulation.histograms)) == 1437
    upper = Simulation(Experiment.parse(tiny(defense="upper")))
    assert upper.malicious == [1]
    assert [client.id for client in upper.federation.clients] == [0, 2, 3, 4]


def test_one_experiment_per_defence_with_the_settings_shared(tiny, caplog):
    chosen = experiments(tiny(defense={"threshold": 0.3}), "lower, gpd-paper,gpd")
    assert [each.defense.name for each in chosen] == ["lower", "gpd-paper", "gpd"]
    assert [each.detector.name for each in chosen] == ["none", "consistency", "persistence"]
    assert [each.defense.threshold for each in chosen] == [0.3] * 3
    everything = [each.defense.name for each in experiments(tiny(), "all")]
    assert everything == [name for name in defenses if name not in {"krum", "multi-krum", "bulyan"}]  # a ring of 5
    assert "bulyan is left out: defense.assumed" in caplog.text
    for wrong in ("", "lower,lower"):
        with pytest.raises(ConfigError, match="defenses: "):
            experiments(tiny(), wrong)
    with pytest.raises(ConfigError, match="did you mean 'lower'"):
        experiments(tiny(), "gpd,lowr")


def test_a_comparison_takes_up_what_is_there(experiment, tiny, finished, tmp_path):
    def no_training(*_):
        pytest.fail("trained again")

    assert run_or_continue(experiment, finished, on_round=no_training) == RunFolder(finished).result()
    folder = interrupted(experiment, tmp_path / "stopped", 3)
    seen = []
    run_or_continue(experiment, folder, on_round=lambda row, _: seen.append(row["round"]))
    assert seen == [4, 5]
    with pytest.raises(RunError, match="another experiment"):
        run_or_continue(Experiment.parse(tiny(seed=1)), finished, on_round=no_training)
    (tmp_path / "empty").mkdir()
    run_or_continue(experiment, tmp_path / "empty", on_round=lambda *_: None)
    assert_same_run(finished, tmp_path / "empty")


def test_a_disk_that_fills_up_ends_with_advice_and_can_be_resumed(tmp_path, monkeypatch):
    experiment = Experiment(model="mlp", rounds=3)
    straight = run(experiment)

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("purifl.folders.save_file", full)
        with pytest.raises(RunError, match=r"round 1 .*No space left.*purifl resume"):
            run(experiment, tmp_path / "run")
    resumed = resume(tmp_path / "run")
    assert resumed.history == straight.history


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", b"5\n"),
        ("events.jsonl", b"\xff\xfe\n"),
        ("metrics.jsonl", b""),
        ("metrics.jsonl", b"{}\n{}\n"),
    ],
)
def test_a_damaged_finished_run_is_named(tmp_path, file, content):
    run(Experiment(model="mlp", rounds=1), tmp_path / "run")
    (tmp_path / "run" / file).write_bytes(content)
    with pytest.raises(RunError, match=rf"{file} is damaged"):
        RunFolder(tmp_path / "run").result()


def test_a_run_that_diverges_is_stored_as_valid_json(tmp_path):
    training = {"step_size": 1e9}
    result = run(Experiment(defense="gpd-paper", model="mlp", rounds=6, training=training), tmp_path / "run")

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    for name in ("result.json", "metrics.jsonl"):
        for text in (tmp_path / "run" / name).read_text().strip().split("\n" if name.endswith("l") else "\0"):
            json.loads(text, parse_constant=refuse)
    assert result.summary()["tracking_error"] is None


def test_a_comparison_never_writes_into_what_is_not_one(tmp_path):
    (tmp_path / "mine" / "report").mkdir(parents=True)
    (tmp_path / "mine" / "report" / "index.html").write_text("mine")
    run(Experiment(model="mlp", rounds=1), tmp_path / "run")
    for name in ("mine", "run"):
        with pytest.raises(RunError, match="holds no comparison"):
            claim(tmp_path / name)
    claim(tmp_path / "new")
    claim(tmp_path / "new")
    assert (tmp_path / "mine" / "report" / "index.html").read_text() == "mine"


def test_a_copy_of_an_experiment_may_have_more_rounds():
    longer = Experiment(rounds=2, clients=4, model="mlp").model_copy(update={"rounds": 4})
    assert len(run(longer).history) == 4


def test_a_run_in_progress_cannot_be_started_or_resumed_by_another(experiment, tmp_path):
    folder = tmp_path / "run"

    def on_round(row, _):
        for again in (lambda: resume(folder), lambda: run(experiment, folder, force=True)):
            with pytest.raises(BusyError, match="another process"):
                again()
        raise Stop

    with pytest.raises(Stop):
        run(experiment, folder, on_round=on_round)
    assert resume(folder).final["round"] == 5
    assert not (folder / "lock").exists()


def test_the_lock_of_a_killed_process_is_free(tiny, tmp_path):
    experiment = Experiment.parse(tiny(rounds=500))
    folder = tmp_path / "run"
    child = start(multiprocessing.get_context("fork"), experiment, folder)
    wait_for_rows(folder, 1, child)
    with pytest.raises(BusyError):
        run_or_continue(experiment, folder, wait=0)
    child.kill()
    child.join()
    assert (folder / "lock").exists()
    with pytest.raises(Stop):
        run_or_continue(experiment, folder, on_round=stop_after(len(rows(folder)) + 1))


def test_a_run_that_cannot_begin_leaves_nothing(tiny, tmp_path):
    impossible = Experiment.parse(tiny(defense="bulyan"))
    with pytest.raises(ConfigError):
        run_or_continue(impossible, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("seconds", "after"), [(0, list(range(1, 41))), (9, [1, 18, 35, 40])])
def test_saving_takes_at_most_its_share_of_the_time(tiny, tmp_path, monkeypatch, seconds, after):
    """Every round is saved where that is cheap; otherwise several at once, the first and the last always."""
    clock = itertools.count()  # a second passes whenever somebody looks, which is three times a round
    monkeypatch.setattr("purifl.runs.time.perf_counter", lambda: float(next(clock)))
    experiment = Experiment.parse(tiny(rounds=40))
    saved, store = [], RunFolder.store

    def slow(folder, rows, events, state, *rest):
        saved.append(rows[-1]["round"])
        for _ in range(seconds if state is not None else 0):
            next(clock)
        store(folder, rows, events, state, *rest)

    monkeypatch.setattr(RunFolder, "store", slow)
    run_or_continue(experiment, tmp_path / "run", saving=0.2 if seconds else 1)
    assert saved == after


def test_sparing_runs_give_the_same_rows_and_keep_no_state(experiment, finished, tmp_path):
    run_or_continue(experiment, tmp_path / "sparing", saving=0)
    assert set(contents(tmp_path / "sparing")) == FILES - {"checkpoint.safetensors"}
    for name in ("experiment.json", "metrics.jsonl", "events.jsonl"):
        assert (finished / name).read_bytes() == (tmp_path / "sparing" / name).read_bytes()
    assert RunFolder(tmp_path / "sparing").result().trust == RunFolder(finished).result().trust


@pytest.mark.parametrize(("saving", "saved"), [(math.inf, 3), (0, 1)])
def test_a_sparing_run_that_is_stopped_goes_on_from_its_last_checkpoint(experiment, finished, tmp_path, saving, saved):
    folder = tmp_path / "stopped"
    with pytest.raises(Stop):
        run_or_continue(experiment, folder, on_round=stop_after(3), saving=saving)
    assert len(rows(folder)) == saved
    seen = []
    run_or_continue(experiment, folder, on_round=lambda row, _: seen.append(row["round"]), saving=saving)
    assert seen == list(range(saved + 1, 6))
    assert rows(folder) == rows(finished)
