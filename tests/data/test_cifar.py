import hashlib
import io
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch

from purifl.data import cifar, datasets
from purifl.data.check import check
from purifl.data.files import data_root, find
from purifl.errors import DataError

FOLDER = "cifar-10-batches-py"
BATCHES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
SIZE = 6


def pixels(k):
    return np.random.default_rng(k).integers(0, 256, (SIZE, 3072), dtype=np.uint8)


def labels(k):
    return [(k + j) % 10 for j in range(SIZE)]


def batch(k, protocol=2, **changed):
    content = {"batch_label": f"batch {k}", "labels": labels(k), "data": pixels(k), "filenames": ["a.png"] * SIZE}
    return pickle.dumps(content | changed, protocol=protocol)


def python2_batch(k):
    """A batch as the published files spell it: byte strings throughout, and NumPy's old module name."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    state = b"(K\x01" + b"K\x06M\x00\x0c\x86" + b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    state += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state += b"\x89T" + (SIZE * 3072).to_bytes(4, "little") + pixels(k).tobytes() + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R" + state
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels(k)) + b"e"
    return b"\x80\x02}(" + text(b"labels") + numbers + text(b"data") + array + b"u."


def contents(make=batch, **replaced):
    return {name: make(k) for k, name in enumerate(BATCHES)} | replaced


def write_tar(path, files, folder=FOLDER):
    with tarfile.open(path, "w:xz" if path.suffix == ".xz" else "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_folder(path, files):
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)


def load(root, monkeypatch):
    monkeypatch.setenv("PURIFL_DATA", str(root))
    return datasets.resolve("cifar-10").load()


def assert_synthetic(data):
    assert (data.name, data.classes, data.shape) == ("cifar-10", 10, (3, 32, 32))
    assert data.train.x.dtype == torch.float32
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.mean, data.std))
    back = ((data.train.x * std + mean) * 255).round().to(torch.uint8)
    expected = np.concatenate([pixels(k) for k in range(5)]).reshape(-1, 3, 32, 32)
    assert torch.equal(back, torch.from_numpy(expected))
    assert data.train.y.tolist() == [label for k in range(5) for label in labels(k)]
    assert data.test.y.tolist() == labels(5)


@pytest.mark.parametrize("name", [f"{FOLDER}.tar.gz", "cifar-10-python.tar.gz", f"{FOLDER}.tar.xz", FOLDER])
def test_reads_every_layout(tmp_path, monkeypatch, name):
    (write_tar if ".tar" in name else write_folder)(tmp_path / name, contents())
    assert_synthetic(load(tmp_path, monkeypatch))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_reads_what_python3_pickled(protocol):
    images, found = cifar.read_batch(batch(3, protocol), "here")
    np.testing.assert_array_equal(images, pixels(3))
    assert found == labels(3)


def test_reads_python2_pickles(tmp_path, monkeypatch):
    write_folder(tmp_path / FOLDER, contents(python2_batch))
    assert_synthetic(load(tmp_path, monkeypatch))


def test_column_major_data_is_read_as_it_was_written():
    images, _ = cifar.read_batch(batch(1, data=np.asfortranarray(pixels(1))), "here")
    np.testing.assert_array_equal(images, pixels(1))


def test_batches_are_ordered_by_name_and_not_as_they_lie_in_the_archive(tmp_path, monkeypatch):
    backwards = dict(reversed(contents().items()))
    write_tar(tmp_path / f"{FOLDER}.tar.gz", {"readme.html": b"x", **backwards}, folder=f"./{FOLDER}")
    assert_synthetic(load(tmp_path, monkeypatch))


class Payload:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [2, 4])
def test_malicious_pickle_is_refused_and_not_run(tmp_path, monkeypatch, protocol):
    mark = tmp_path / "mark"
    evil = batch(0, protocol=protocol, filenames=Payload(os.mkdir, str(mark)))
    write_tar(tmp_path / f"{FOLDER}.tar.xz", contents(data_batch_1=evil))
    with pytest.raises(DataError, match=rf"data_batch_1\).* asks for {os.mkdir.__module__}\.mkdir, which is refused"):
        load(tmp_path, monkeypatch)
    assert not mark.exists()
    pickle.loads(evil)
    assert mark.exists(), "the payload would have run in an ordinary unpickler"


@pytest.mark.parametrize(
    "payload",
    [
        Payload(eval, "1"),
        Payload(getattr, "", "join"),
        Payload(np.load, "x"),
        Payload(io.open, "x"),
        Payload(np.frombuffer, b"12345678", object),
    ],
    ids=lambda payload: payload.call[0].__name__,
)
def test_other_globals_are_refused(payload):
    with pytest.raises(DataError, match="which is refused"):
        cifar.read_batch(batch(0, batch_label=payload), "here")


DAMAGED = {
    "no pickle": (b"nonsense", "not a usable CIFAR-10 batch"),
    "empty": (b"", "not a usable CIFAR-10 batch"),
    "truncated": (batch(0)[:-100], "not a usable CIFAR-10 batch"),
    "not a mapping": (pickle.dumps([1]), "not a usable CIFAR-10 batch"),
    "no data": (pickle.dumps({"labels": [1]}), "not a usable CIFAR-10 batch: 'data'"),
    "data of another type": (batch(0, data=pixels(0).astype(np.int16)), "not a matrix of unsigned bytes"),
    "data of another shape": (batch(0, data=pixels(0)[:, :-1]), "with 3072 columns"),
    "no images": (batch(0, protocol=3, data=pixels(0)[:0], labels=[]), "not a matrix"),
    "data is a list": (batch(0, data=[[0] * 3072]), "not a matrix"),
    "label 10": (batch(0, labels=[10] * SIZE), "has the label 10, expected 0..9"),
    "label -1": (batch(0, labels=[-1] * SIZE), "has the label -1, expected 0..9"),
    "label not a number": (batch(0, labels=["1"] * SIZE), "has the label '1', expected 0..9"),
    "fewer labels": (batch(0, labels=[1]), "6 images but 1 labels"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_batch_is_a_data_error(tmp_path, monkeypatch, content, message):
    write_folder(tmp_path / FOLDER, contents(data_batch_2=content))
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, monkeypatch)
    assert "(data_batch_2)" in str(caught.value)


@pytest.mark.parametrize("suffix", ["gz", "xz"])
@pytest.mark.parametrize("damage", ["truncated", "not an archive", "lacks a batch"])
def test_damaged_archive_is_a_data_error(tmp_path, monkeypatch, suffix, damage):
    path = tmp_path / f"{FOLDER}.tar.{suffix}"
    files = contents()
    if damage == "lacks a batch":
        del files["data_batch_4"]
    write_tar(path, files)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    if damage == "not an archive":
        path.write_bytes(b"<html>not found</html>")
    message = "lacks .*data_batch_4" if damage == "lacks a batch" else "cannot be read: "
    with pytest.raises(DataError, match=message):
        load(tmp_path, monkeypatch)


def test_folder_that_lacks_a_batch(tmp_path, monkeypatch):
    files = contents()
    del files["test_batch"]
    write_folder(tmp_path / FOLDER, files)
    with pytest.raises(DataError, match=r"test_batch cannot be read: No such file"):
        load(tmp_path, monkeypatch)


def test_missing_set_names_what_was_looked_for_and_the_command(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=f"not found in {tmp_path} .*{FOLDER}.tar.xz.*purifl data fetch cifar-10"):
        load(tmp_path, monkeypatch)


def test_check_judges_the_batches_of_an_unpacked_folder_one_by_one(tmp_path, monkeypatch):
    write_folder(tmp_path / FOLDER, contents())
    monkeypatch.setitem(cifar.BATCHES, "data_batch_3", f"md5:{hashlib.md5(batch(2)).hexdigest()}")
    report = check("cifar-10", tmp_path)
    assert [found.path.name for found in report.files if found.canonical] == ["data_batch_3"]
    assert len(report.files) == len(BATCHES)
    assert (report.train, report.test, report.shape) == (5 * SIZE, SIZE, (3, 32, 32))


def test_check_says_that_a_repacked_archive_is_not_the_published_one(tmp_path):
    write_tar(tmp_path / f"{FOLDER}.tar.xz", contents())
    (found,) = check("cifar-10", tmp_path).files
    assert (found.path.name, found.canonical) == (f"{FOLDER}.tar.xz", False)


def test_real_cifar():
    if not os.environ.get("PURIFL_DATA"):
        pytest.skip("PURIFL_DATA is not set")
    source = datasets.resolve("cifar-10")
    if find(source.files[0], data_root()) is None:
        pytest.skip("PURIFL_DATA has no cifar-10")
    data = source.load()
    assert torch.bincount(data.train.y).tolist() == [5000] * 10
    assert torch.bincount(data.test.y).tolist() == [1000] * 10
    assert data.train.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert torch.all(data.train.x.mean(dim=(0, 2, 3)).abs() < 1e-3)
    assert torch.all((data.train.x.std(dim=(0, 2, 3)) - 1).abs() < 2e-3)
