import io
import os
import tarfile

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from purifl.data import datasets
from purifl.data.check import check
from purifl.data.files import data_root, find
from purifl.data.newsgroups import tf_idf
from purifl.errors import ConfigError, DataError

TRAIN, TEST = "20news-bydate-train", "20news-bydate-test"
GROUPS = [f"group{chr(ord('a') + k)}" for k in range(20)]


def messages():
    """Two training messages and one test message in each group; ``wordX`` is the word of group X."""
    files = {}
    for k, group in enumerate(GROUPS):
        word = f"word{group[-1]}"
        files[f"{TRAIN}/{group}/{100 + k}"] = f"From: me\n\n{word} {word} common the z\xfcrich"
        files[f"{TRAIN}/{group}/{200 + k}"] = f"From: me\n\n{word} common single{k}"
        files[f"{TEST}/{group}/{300 + k}"] = f"{word} unseen unseen"
    return {name: text.encode("latin-1") for name, text in files.items()}


def write_tar(root, files):
    with tarfile.open(root / "20news-bydate.tar.gz", "w:gz") as archive:
        for name, content in reversed(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_folders(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def load(root, monkeypatch, **parameters):
    monkeypatch.setenv("PURIFL_DATA", str(root))
    return datasets.resolve({"name": "20newsgroups", **parameters}).load()


@pytest.mark.parametrize("write", [write_tar, write_folders])
def test_reads_both_layouts_in_the_same_order(tmp_path, monkeypatch, write):
    write(tmp_path, messages())
    data = load(tmp_path, monkeypatch)
    assert (data.name, data.classes, data.mean, data.std) == ("20newsgroups", 20, (0.0,), (1.0,))
    assert data.train.y.tolist() == [k for k in range(20) for _ in range(2)]
    assert data.test.y.tolist() == list(range(20))
    assert data.train.x.dtype == torch.float32
    assert data.shape == (22,), "common, zürich and the 20 words of the groups: no stop words, none of one message"
    for k in range(20):
        own = data.test.x[k].argmax()
        assert data.train.x[2 * k, own] > 0
        assert data.train.x[2 * k + 1, own] > 0
        assert (data.train.x[:, own] > 0).sum() == 2


def test_vocabulary_comes_from_the_training_split_alone(tmp_path, monkeypatch):
    files = messages()
    write_tar(tmp_path, files)
    before = load(tmp_path, monkeypatch)
    files[f"{TEST}/groupa/300"] = b"entirely foreign text"
    files[f"{TEST}/groupb/301"] = b"wordb entirely foreign text"
    write_tar(tmp_path, files)
    after = load(tmp_path, monkeypatch)
    assert torch.equal(before.train.x, after.train.x)
    assert after.test.x[0].count_nonzero() == 0
    assert torch.equal(before.test.x[1:], after.test.x[1:])


def test_vocabulary_keeps_the_most_frequent_words_and_breaks_ties_by_alphabet(tmp_path, monkeypatch):
    write_tar(tmp_path, messages())
    data = load(tmp_path, monkeypatch, vocabulary=12)
    assert data.shape == (12,)
    seen = data.test.x.count_nonzero(dim=1).tolist()
    assert seen == [1] * 10 + [0] * 10, "zürich and common come first, then worda to wordj"


def test_features_are_those_of_scikit_learn_where_nothing_is_cut():
    texts = [content.decode("latin-1") for content in messages().values()]
    ours, ours_test = tf_idf(texts, texts[:5], 5000)
    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True, min_df=2, dtype=np.float32)
    np.testing.assert_allclose(ours, vectorizer.fit_transform(texts).toarray(), rtol=1e-6)
    np.testing.assert_allclose(ours_test, vectorizer.transform(texts[:5]).toarray(), rtol=1e-6)


@pytest.mark.parametrize("value", [9, -1, "many"])
def test_vocabulary_out_of_range_is_refused(value):
    with pytest.raises(ConfigError, match="vocabulary"):
        datasets.resolve({"name": "20newsgroups", "vocabulary": value})


@pytest.mark.parametrize("split", [TRAIN, TEST])
def test_a_missing_group_is_a_data_error(tmp_path, monkeypatch, split):
    write_tar(tmp_path, {name: text for name, text in messages().items() if f"{split}/groupc" not in name})
    with pytest.raises(DataError, match="do not hold the same 20 groups"):
        load(tmp_path, monkeypatch)


def test_folder_without_its_test_half_is_a_data_error(tmp_path, monkeypatch):
    write_folders(tmp_path, {name: text for name, text in messages().items() if name.startswith(TRAIN)})
    with pytest.raises(DataError, match="do not hold the same 20 groups"):
        load(tmp_path, monkeypatch)


def test_messages_without_words_are_a_data_error(tmp_path, monkeypatch):
    write_tar(tmp_path, dict.fromkeys(messages(), b"the"))
    with pytest.raises(DataError, match="holds no usable text"):
        load(tmp_path, monkeypatch)


def test_truncated_archive_is_an_error_and_not_a_smaller_set(tmp_path, monkeypatch):
    write_tar(tmp_path, messages())
    path = tmp_path / "20news-bydate.tar.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path, monkeypatch)


def test_check_reports_a_repacked_archive(tmp_path):
    write_tar(tmp_path, messages())
    report = check("20newsgroups", tmp_path)
    assert [(found.path.name, found.canonical) for found in report.files] == [("20news-bydate.tar.gz", False)]
    assert (report.train, report.test, report.classes) == (40, 20, 20)


def test_missing_set_names_what_was_looked_for_and_the_command(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"holds 20news-bydate.tar.gz or .*purifl data fetch 20newsgroups\)"):
        load(tmp_path, monkeypatch)


def test_real_newsgroups():
    if not os.environ.get("PURIFL_DATA"):
        pytest.skip("PURIFL_DATA is not set")
    source = datasets.resolve({"name": "20newsgroups", "vocabulary": 1000})
    if find(source.files[0], data_root()) is None:
        pytest.skip("PURIFL_DATA has no 20newsgroups")
    data = source.load()
    assert (len(data.train.y), len(data.test.y), data.shape) == (11314, 7532, (1000,))
    assert torch.bincount(data.train.y).tolist()[:3] == [480, 584, 591]
    assert torch.bincount(data.test.y).tolist()[-3:] == [376, 310, 251]
    norms = data.train.x.norm(dim=1)
    assert torch.all(((norms - 1).abs() < 1e-4) | (norms == 0))
