import gzip
import hashlib
import os
import struct

import numpy as np
import pytest
import torch

from purifl.data import datasets
from purifl.data.check import check
from purifl.data.files import data_root, find
from purifl.errors import DataError

NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def idx(array, magic=None, shape=None):
    shape = array.shape if shape is None else shape
    magic = 0x800 + len(shape) if magic is None else magic
    return struct.pack(f">I{len(shape)}I", magic, *shape) + array.tobytes()


def images(count):
    return np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def labels(count):
    return (np.arange(count) % 10).astype(np.uint8)


def write(folder, **replaced):
    """The four files; keywords such as ``train_labels`` replace the bytes of one."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (images(30), labels(30), images(12), labels(12))
    for name, array in zip(NAMES, arrays, strict=True):
        body = replaced.get(name[: name.index("-idx")].replace("-", "_"), gzip.compress(idx(array)))
        (folder / f"{name}-ubyte.gz").write_bytes(body)


def load(root, monkeypatch, name="mnist"):
    monkeypatch.setenv("PURIFL_DATA", str(root))
    return datasets.resolve(name).load()


@pytest.mark.parametrize(
    ("name", "folder", "scale"),
    [
        ("mnist", "MNIST/raw", (0.1307, 0.3081)),
        ("mnist", "MNIST", (0.1307, 0.3081)),
        ("fashion-mnist", "FashionMNIST/raw", (0.2860, 0.3530)),
        ("fashion-mnist", "FashionMNIST", (0.2860, 0.3530)),
    ],
)
def test_reads_images_and_labels(tmp_path, monkeypatch, name, folder, scale):
    mean, std = scale
    write(tmp_path / folder)
    data = load(tmp_path, monkeypatch, name)
    assert (data.name, data.classes, data.shape) == (name, 10, (1, 28, 28))
    assert (data.mean, data.std) == ((mean,), (std,))
    assert data.train.x.dtype == torch.float32
    raw = data.test.x * std + mean
    assert torch.equal((raw * 255).round().to(torch.uint8)[:, 0], torch.from_numpy(images(12)))
    assert data.train.y.tolist() == labels(30).tolist()


def test_missing_set_names_the_file_the_folder_and_the_command(tmp_path, monkeypatch):
    with pytest.raises(DataError) as caught:
        load(tmp_path, monkeypatch)
    assert str(caught.value) == (
        f"data set 'mnist' was not found in {tmp_path} (set PURIFL_DATA to the folder that holds "
        "MNIST/raw/train-images-idx3-ubyte.gz or MNIST/train-images-idx3-ubyte.gz, "
        "or run: purifl data fetch mnist)"
    )


def test_one_missing_file_is_named(tmp_path, monkeypatch):
    write(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"MNIST/raw/t10k-labels-idx1-ubyte\.gz"):
        load(tmp_path, monkeypatch)


GOOD = gzip.compress(idx(images(30)))
DAMAGED = {
    "no gzip": ({"train_images": b"plain bytes"}, "Not a gzipped file"),
    "empty": ({"train_images": b""}, "not an idx file"),
    "truncated gzip": ({"train_images": GOOD[:-200]}, "end-of-stream"),
    "corrupt gzip": ({"train_images": GOOD[:-8] + b"\0\0\0\0" + GOOD[-4:]}, "CRC"),
    "wrong magic": ({"train_images": gzip.compress(idx(images(30), magic=0x801))}, "not an idx file"),
    "signed type": ({"train_images": gzip.compress(idx(images(30), magic=0x903))}, "not an idx file"),
    "short header": ({"train_images": gzip.compress(b"\0\0\x08\x03\0\0")}, "not an idx file"),
    "promises too much": (
        {"train_images": gzip.compress(idx(images(30), shape=(31, 28, 28)))},
        "promises 24304 bytes in its header but holds only 23520",
    ),
    "promises too little": (
        {"train_images": gzip.compress(idx(images(30), shape=(29, 28, 28)))},
        "promises 22736 bytes in its header but holds more",
    ),
    "promises terabytes": (
        {"train_images": gzip.compress(idx(images(30), shape=(2**32 - 1, 28, 28)))},
        "has the shape 4294967295 x 28 x 28",
    ),
    "no samples": ({"train_images": gzip.compress(idx(images(0)))}, "has the shape 0 x 28 x 28"),
    "other size": (
        {"train_images": gzip.compress(idx(np.zeros((30, 14, 56), np.uint8)))},
        "has the shape 30 x 14 x 56",
    ),
    "label 10": ({"train_labels": gzip.compress(idx(labels(30) + 1))}, "has the label 10, expected 0..9"),
    "fewer labels": ({"train_labels": gzip.compress(idx(labels(29)))}, "30 images but .* 29 labels"),
    "swapped files": ({"train_labels": GOOD}, "not an idx file of unsigned bytes in 1 dimensions"),
}


@pytest.mark.parametrize(("replaced", "message"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_a_data_error(tmp_path, monkeypatch, replaced, message):
    write(tmp_path / "MNIST", **replaced)
    with pytest.raises(DataError, match=message):
        load(tmp_path, monkeypatch)
    with pytest.raises(DataError, match=message):
        check("mnist", tmp_path)


def test_check_reports_bytes_that_are_not_the_published_ones(tmp_path, monkeypatch):
    write(tmp_path / "MNIST")
    source = datasets.resolve("mnist")
    path = tmp_path / "MNIST" / "train-labels-idx1-ubyte.gz"
    known = f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"
    files = [type(f)(f.url, f.path, known if "train-labels" in f.path else f.checksum, f.aliases) for f in source.files]
    monkeypatch.setattr(type(source), "files", tuple(files))
    report = check("mnist", tmp_path)
    assert [found.path.name for found in report.files] == [f"{name}-ubyte.gz" for name in NAMES]
    assert [found.canonical for found in report.files] == [False, True, False, False]
    assert (report.train, report.test, report.classes, report.shape) == (30, 12, 10, (1, 28, 28))


def real(name):
    if not os.environ.get("PURIFL_DATA"):
        pytest.skip("PURIFL_DATA is not set")
    source = datasets.resolve(name)
    if any(find(file, data_root()) is None for file in source.files):
        pytest.skip(f"PURIFL_DATA has no {name}")
    return source.load()


def test_real_mnist():
    data = real("mnist")
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(data.train.y).tolist() == train
    assert torch.bincount(data.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train.x.mean().abs() < 1e-3
    assert (data.train.x.std() - 1).abs() < 1e-3


def test_real_fashion_mnist():
    data = real("fashion-mnist")
    assert torch.bincount(data.train.y).tolist() == [6000] * 10
    assert torch.bincount(data.test.y).tolist() == [1000] * 10
    assert data.train.x.mean().abs() < 1e-3
    assert (data.train.x.std() - 1).abs() < 1e-3
