"""Runs are found wherever they are."""

import pytest

from purifl import Experiment, run
from purifl.errors import RunError
from purifl.folders import RunFolder
from purifl.report.find import find


@pytest.fixture
def store(tiny, tmp_path):
    """Two finished runs at different depths, and an unfinished one."""
    for seed, place in enumerate(["b", "a/deep/er"]):
        run(Experiment.parse(tiny(seed=seed, rounds=1)), tmp_path / place)
    RunFolder.create(tmp_path / "a" / "unfinished", Experiment.parse(tiny()))
    (tmp_path / "b" / "report").mkdir()
    (tmp_path / "notes.txt").touch()
    return tmp_path


def test_runs_at_any_depth_are_found_in_order_each_once(store):
    results, left_out = find([store, store / "b", store / "a" / ".." / "b"])
    assert [result.folder for result in results] == [store / "a" / "deep" / "er", store / "b"]
    assert [result.experiment.seed for result in results] == [1, 0]
    (reason,) = left_out
    assert f"{store / 'a' / 'unfinished'} is not finished; continue it with: purifl resume" in reason
    assert [result.experiment.seed for result in find([store / "b", store / "a"])[0]] == [0, 1]


def test_a_run_that_is_named_has_to_be_finished(store):
    with pytest.raises(RunError, match="unfinished is not finished; continue it with: purifl resume"):
        find([store / "a" / "unfinished"])
    (store / "a" / "deep" / "er" / "experiment.json").unlink()
    with pytest.raises(RunError, match=r"of 1 runs none can be used; .* is not finished; continue it with"):
        find([store / "a"])


def test_a_run_of_what_is_not_installed_is_left_out_of_the_others_and_refused_by_name(store):
    file = store / "b" / "experiment.json"
    file.write_text(file.read_text().replace('"name": "gpd"', '"name": "theirs"'))
    results, left_out = find([store])
    assert [result.experiment.seed for result in results] == [1]
    assert any("or of a package that is not installed: defense: 'theirs'" in reason for reason in left_out)
    with pytest.raises(RunError, match="not installed: defense: 'theirs'"):
        find([store / "b"])


def test_a_folder_without_runs_is_said(store):
    with pytest.raises(RunError, match=r"report: there is no run folder at or under it"):
        find([store, store / "b" / "report"])
    with pytest.raises(RunError, match=r"notes\.txt is not a folder"):
        find([store / "notes.txt"])


def test_the_folder_of_a_peer_is_no_run(store, tiny):
    """It has the experiment beside its key, and what it recorded is part of the federation's run."""
    peer = store / "peers" / "0"
    run(Experiment.parse(tiny(seed=7, rounds=1)), peer / "run")
    (peer / "peer.yaml").write_text("id: 0")
    (peer / "experiment.json").write_text((store / "b" / "experiment.json").read_text())
    results, left_out = find([store])
    assert [result.experiment.seed for result in results] == [1, 0]
    assert len(left_out) == 1
    with pytest.raises(RunError, match=r"is the folder of a peer, .* go on, with: purifl peer \S+peer.yaml"):
        RunFolder(peer).experiment()
