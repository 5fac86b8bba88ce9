"""The examples run, and do what they say."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert runpy.run_path(str(path))["main"]() > 0.8
    assert "cut" in capsys.readouterr().out


def test_the_organisations_get_a_new_folder_each_time(monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("purifl.peer.watch.up", stop)
    main = runpy.run_path(str(EXAMPLES[0].with_name("five_organisations.py")))["main"]
    for times in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            main()
        assert len(list(tmp_path.glob("five-organisations-*/peers/4/peer.yaml"))) == times
