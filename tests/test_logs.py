"""What TensorBoard and MLflow read back is what was measured, also of a run that was interrupted."""

import os
import sys

import pytest

from engines_here import Here
from purifl import Experiment, run, sweep
from purifl.errors import ConfigError
from purifl.logs import check_log, logged
from purifl.runs import run_or_continue

pytestmark = pytest.mark.usefixtures("_one_thread")


class Stop(BaseException):
    pass


@pytest.fixture
def experiment(tiny):
    return Experiment.parse(tiny())


def interrupt_and_resume(log, experiment, folder):
    """Rounds 3 and 4 are done twice: the checkpoint is that of round 2."""
    with pytest.raises(Stop), logged(log, experiment, folder) as write:
        run_or_continue(experiment, folder, on_round=lambda row, sim: write(row, sim) or stop(row, folder))
    with logged(log, experiment, folder) as write:
        return run_or_continue(experiment, folder, on_round=write)


def stop(row, folder):
    """Ends the run in round 4, with the checkpoint of round 2."""
    checkpoint = folder / "checkpoint.safetensors"
    if row["round"] == 2:
        (folder / "kept.new").write_bytes(checkpoint.read_bytes())
    if row["round"] == 4:
        (folder / "kept.new").replace(checkpoint)
        raise Stop


def measured(result, key):
    return [(row["round"], row[key]) for row in result.history if row.get(key) is not None]


def read_tensorboard(folder):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed: pip install 'purifl[tensorboard]'",
    )
    accumulator = events.EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_tensorboard_has_every_round_once(experiment, tmp_path):
    result = interrupt_and_resume("tensorboard", experiment, tmp_path / "run")
    assert result.history == run(experiment).history
    read = read_tensorboard(tmp_path / "run" / "tensorboard")
    for key in ("test_accuracy", "attack_accuracy", "tracking_error", "missed_edges"):
        assert [(event.step, event.value) for event in read.Scalars(key)] == [
            (step, pytest.approx(value)) for step, value in measured(result, key)
        ]
    assert [event.value for event in read.Scalars("accuracy_by_client/0")] == pytest.approx(
        [row["accuracy_by_client"]["0"] for row in result.history]
    )
    assert "experiment/text_summary" in read.Tags()["tensors"]


@pytest.fixture
def mlflow_client(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'purifl[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to set up
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    mlflow.set_tracking_uri(None)
    return mlflow.MlflowClient()


@pytest.mark.parametrize("place", ["http://127.0.0.1:9", "nonsense://here"])
def test_a_place_that_mlflow_cannot_use_is_refused_before_the_run(place, mlflow_client, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    with pytest.raises(ConfigError, match="MLflow cannot use it") as caught:
        check_log("mlflow")
    assert (caught.value.field, caught.value.value) == ("MLFLOW_TRACKING_URI", place)
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_mlflow_has_one_run_with_every_round_once(experiment, mlflow_client, tmp_path):
    result = interrupt_and_resume("mlflow", experiment, tmp_path / "run")
    where = mlflow_client.get_experiment_by_name("purifl").experiment_id
    (logged_run,) = mlflow_client.search_runs([where])
    assert logged_run.info.status == "FINISHED"
    params = logged_run.data.params
    assert (params["attack"], params["defense.threshold"], params["rounds"]) == ("backdoor-9", "0.9", "5")
    for key in ("test_accuracy", "missed_edges", "accuracy_by_label/3"):
        history = mlflow_client.get_metric_history(logged_run.info.run_id, key)
        wanted = (
            [(row["round"], row["accuracy_by_label"][3]) for row in result.history]
            if "/" in key
            else measured(result, key)
        )
        assert [(metric.step, metric.value) for metric in history] == wanted


def test_a_sweep_logs_every_run_in_its_folder(experiment, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'purifl[tensorboard]'")
    monkeypatch.setattr("purifl.sweeps.schedule.Local", Here)
    report = sweep([experiment], tmp_path / "store", log="tensorboard")
    (result,) = report.results()
    read = read_tensorboard(result.folder / "tensorboard")
    assert len(read.Scalars("test_accuracy")) == 5


def test_a_log_that_is_not_installed_is_refused_with_what_to_install(experiment, tmp_path, monkeypatch):
    for log in ("tensorboard", "mlflow"):
        monkeypatch.setattr("purifl.logs.find_spec", lambda _: None)
        with pytest.raises(ConfigError, match=rf"pip install 'purifl\[{log}\]'"), logged(log, experiment, tmp_path):
            pytest.fail("began")


def test_without_a_log_nothing_is_imported_or_written(experiment, tmp_path):
    before = set(sys.modules)
    with logged(None, experiment, tmp_path / "run") as write:
        run_or_continue(experiment, tmp_path / "run", on_round=write)
    assert not {name for name in set(sys.modules) - before if name.startswith(("mlflow", "tensorboard"))}
    assert not (tmp_path / "run" / "tensorboard").exists()
