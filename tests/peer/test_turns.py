"""A checkpoint that is written over: it reads as safetensors has it, and is whole whenever it is looked at."""

import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from purifl.peer.turns import _NAMES, by_turns, end_turns, write_over

STATE = {
    "cut": torch.tensor([True, False, True]),
    "round": torch.tensor(7),
    "theta": torch.randn(2, 3),
    "fourth": torch.randn(5, dtype=torch.float64),
    "none": torch.zeros(0, 4),
    **{str(dtype): torch.arange(3).to(dtype) for dtype in _NAMES},
}


def numbered(number):
    return STATE | {"round": torch.tensor(number)}


def replace(file, number, change=lambda: None):
    with by_turns(file):
        write_over(numbered(number), file.with_name(file.name + ".new"), {})
        change()
        file.with_name(file.name + ".new").replace(file)


def test_what_is_written_over_reads_as_safetensors(tmp_path):
    file = tmp_path / "state"
    file.write_bytes(os.urandom(5000))
    write_over(STATE, file, {"seconds": "1.5"})
    read = load_file(file)
    assert read.keys() == STATE.keys()
    for key, tensor in STATE.items():
        assert read[key].dtype == tensor.dtype
        assert torch.equal(read[key], tensor)
    with safe_open(file, "pt") as stored:
        assert stored.metadata() == {"seconds": "1.5"}


def test_two_files_take_turns(tmp_path):
    file, places = tmp_path / "state", []
    for number in range(4):
        replace(file, number)
        assert load_file(file)["round"] == number
        places.append(file.stat().st_ino)
    assert places[0] == places[2] != places[1] == places[3]
    end_turns(file)
    assert list(tmp_path.iterdir()) == [file]


class DiedError(Exception):
    pass


@pytest.mark.parametrize("after", ["write", "replace"])
def test_whenever_it_is_interrupted_the_file_is_whole(after, tmp_path, monkeypatch):
    file = tmp_path / "state"

    def die(*_):
        raise DiedError

    for number in range(3):
        replace(file, number)
    with monkeypatch.context() as patch:
        if after == "replace":  # before what was replaced is put aside
            patch.setattr("pathlib.Path.replace", lambda here, there: os.rename(here, there) or die())
        with pytest.raises(DiedError):
            replace(file, 3, die if after == "write" else lambda: None)
    assert load_file(file)["round"] == (2 if after == "write" else 3)
    for number in range(4, 7):
        replace(file, number)
        assert load_file(file)["round"] == number


def test_a_copy_by_hard_links_is_not_written_over(tmp_path):
    file = tmp_path / "state"
    replace(file, 0)
    os.link(file, tmp_path / "backup")
    for number in range(1, 4):
        replace(file, number)
    assert load_file(tmp_path / "backup")["round"] == 0
