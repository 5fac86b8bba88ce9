import gzip
import hashlib
import io
import socket
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from purifl.data import DataSet, Samples, datasets
from purifl.data.files import FileSource, RemoteFile, data_root, fetch, find, members
from purifl.errors import DataError

BODIES = {"/one.bin": b"first file" * 5000, "/set/raw/two.bin": b"second file" * 5000}


def checksum(body, algorithm="md5"):
    return f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        body = BODIES.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.give])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.requests, httpd.give = [], None
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def address(httpd):
    return f"http://127.0.0.1:{httpd.server_port}"


def source_of(*remote):
    class Source(FileSource):
        """A data set for tests."""

        name: ClassVar[str] = "test-set"
        files: ClassVar[tuple[RemoteFile, ...]] = remote

        def read(self, paths):
            x = torch.tensor([[float(len(path.read_bytes()))] for path in paths])
            samples = Samples(x, torch.zeros(len(x), dtype=torch.int64))
            return DataSet(self.name, samples, samples, 2)

    return Source()


def one(base, **changed):
    values = {"url": f"{base}/one.bin", "path": "set/raw/one.bin", "checksum": checksum(BODIES["/one.bin"])}
    return RemoteFile(**(values | changed))


def files_under(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_fetch_puts_the_file_in_its_place_once(server, tmp_path, algorithm):
    source = source_of(one(address(server), checksum=checksum(BODIES["/one.bin"], algorithm)))
    (path,) = fetch(source, tmp_path)
    assert path == tmp_path / "set/raw/one.bin"
    assert path.read_bytes() == BODIES["/one.bin"]
    assert fetch(source, tmp_path) == [path]
    assert server.requests == ["/one.bin"]
    assert files_under(tmp_path) == ["set/raw/one.bin"]


def test_fetched_set_is_found_by_load(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PURIFL_DATA", str(tmp_path))
    source = source_of(one(address(server)))
    with pytest.raises(DataError, match=r"'test-set' was not found in .*purifl data fetch test-set"):
        source.load()
    fetch(source)
    assert source.load().train.x.item() == len(BODIES["/one.bin"])


def test_a_file_under_another_accepted_name_is_not_fetched_again(server, tmp_path):
    (tmp_path / "renamed.bin").write_bytes(BODIES["/one.bin"])
    source = source_of(one(address(server), aliases=("renamed.bin",)))
    assert fetch(source, tmp_path) == [tmp_path / "renamed.bin"]
    assert server.requests == []


def test_other_bytes_in_its_place_are_replaced(server, tmp_path):
    (tmp_path / "set/raw").mkdir(parents=True)
    (tmp_path / "set/raw/one.bin").write_bytes(b"an old version")
    (path,) = fetch(source_of(one(address(server))), tmp_path)
    assert path.read_bytes() == BODIES["/one.bin"]


def test_mirror_replaces_the_host_and_keeps_the_path(server, tmp_path):
    file = RemoteFile("https://unreachable.invalid/two.bin", "set/raw/two.bin", checksum(BODIES["/set/raw/two.bin"]))
    for mirror in (address(server), f"{address(server)}/"):
        (path,) = fetch(source_of(file), tmp_path, mirror)
        assert path.read_bytes() == BODIES["/set/raw/two.bin"]
        path.unlink()
    assert server.requests == ["/set/raw/two.bin"] * 2


def test_wrong_checksum_says_expected_and_got_and_leaves_nothing(server, tmp_path):
    wanted, got = f"md5:{'0' * 32}", checksum(BODIES["/one.bin"]).removeprefix("md5:")
    with pytest.raises(DataError, match=f"expected {wanted} but got {got}$") as caught:
        fetch(source_of(one(address(server), checksum=wanted)), tmp_path)
    assert f"{address(server)}/one.bin" in str(caught.value)
    assert files_under(tmp_path) == []


def test_a_failed_fetch_keeps_the_file_that_was_there(server, tmp_path):
    (tmp_path / "set/raw").mkdir(parents=True)
    (tmp_path / "set/raw/one.bin").write_bytes(b"my repacked copy")
    with pytest.raises(DataError, match="but got"):
        fetch(source_of(one(address(server), checksum=f"md5:{'0' * 32}")), tmp_path)
    assert (tmp_path / "set/raw/one.bin").read_bytes() == b"my repacked copy"


def test_server_down(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(DataError) as caught:
        fetch(source_of(one(f"http://127.0.0.1:{port}")), tmp_path)
    url = f"http://127.0.0.1:{port}/one.bin"
    assert str(caught.value) == f"{url} could not be fetched: the server could not be reached"
    assert files_under(tmp_path) == []


def test_file_not_on_the_server(server, tmp_path):
    with pytest.raises(DataError, match="could not be fetched: 404"):
        fetch(source_of(one(address(server), url=f"{address(server)}/none.bin")), tmp_path)


def test_interrupted_download_leaves_nothing_and_can_be_repeated(server, tmp_path):
    source = source_of(one(address(server)))
    server.give = 30_000
    with pytest.raises(DataError, match="broke off before the end of the file"):
        fetch(source, tmp_path)
    assert files_under(tmp_path) == []
    server.give = None
    (path,) = fetch(source, tmp_path)
    assert path.read_bytes() == BODIES["/one.bin"]


@pytest.mark.parametrize("mirror", ["no-url", "gopher://host", "http://"])
def test_a_mirror_that_is_no_web_address(tmp_path, mirror):
    with pytest.raises(DataError, match="could not be fetched"):
        fetch(source_of(one("http://127.0.0.1")), tmp_path, mirror)


def test_unwritable_folder(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"one\.bin cannot be written: Not a directory"):
        fetch(source_of(one(address(server))), tmp_path / "file" / "below")
    assert server.requests == []


def test_embedded_set_has_nothing_to_fetch(tmp_path):
    assert fetch("digits", tmp_path) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_on_a_terminal_and_only_there(server, tmp_path, monkeypatch):
    screen, plain = Terminal(), io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    for stream, root in ((screen, tmp_path / "a"), (plain, tmp_path / "b")):
        monkeypatch.setattr(sys, "stderr", stream)
        fetch(source_of(one(address(server))), root)
    assert "one.bin" in screen.getvalue()
    assert "100%" in screen.getvalue()
    assert "%" not in plain.getvalue()


def test_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PURIFL_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.setenv("PURIFL_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root().name == "purifl"


def test_pooch_is_needed_only_to_fetch_and_for_the_default_folder(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setenv("PURIFL_DATA", str(tmp_path))
    source = source_of(one("http://127.0.0.1"))
    with pytest.raises(DataError, match="needs the package pooch"):
        fetch(source)
    (tmp_path / "set/raw").mkdir(parents=True)
    (tmp_path / "set/raw/one.bin").write_bytes(b"12345")
    assert source.load().train.x.item() == 5
    monkeypatch.delenv("PURIFL_DATA")
    with pytest.raises(DataError, match="PURIFL_DATA is not set"):
        data_root()


def test_the_registry_imports_no_download_library():
    code = "import sys; from purifl.data import datasets; print(*datasets); assert 'pooch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert {"digits", "mnist", "fashion-mnist", "cifar-10", "20newsgroups"} <= set(result.stdout.split())


def test_find_prefers_the_published_place(tmp_path):
    file = RemoteFile("http://x", "a", "md5:0", ("b", "c"))
    assert find(file, tmp_path) is None
    (tmp_path / "c").touch()
    assert find(file, tmp_path) == tmp_path / "c"
    (tmp_path / "a").touch()
    assert find(file, tmp_path) == tmp_path / "a"


@pytest.mark.parametrize("name", ["digits", "mnist", "fashion-mnist", "cifar-10", "20newsgroups"])
def test_every_set_describes_itself(name):
    (entry,) = [entry for entry in datasets.describe() if entry["name"] == name]
    assert entry["summary"].endswith(".")
    assert entry["reference"]


def test_published_files_have_usable_addresses_and_checksums():
    files = [file for name in datasets for file in getattr(datasets[name], "files", ())]
    assert len(files) == 10
    assert len({file.path for file in files}) == len({file.checksum for file in files}) == 10
    lengths = {"md5": 32, "sha256": 64}
    for file in files:
        algorithm, _, digits = file.checksum.partition(":")
        assert len(digits) == lengths[algorithm]
        assert file.url.startswith("http")


def tar_with(path, *infos):
    """A ``.tar.gz`` of zeros whose headers may promise more than is there."""
    with gzip.open(path, "wb") as stream:
        for info, size in infos:
            stream.write(info.tobuf() + bytes(-(-size // 512) * 512))
        stream.write(bytes(1024))
    return path


def info(name, size, kind=tarfile.REGTYPE):
    header = tarfile.TarInfo(name)
    header.size, header.type = size, kind
    return header


def test_members_gives_regular_files_only_and_writes_nothing(tmp_path):
    link = info("link", 0, tarfile.SYMTYPE)
    link.linkname = "/etc/passwd"
    path = tar_with(tmp_path / "a.tar.gz", (info("d", 0, tarfile.DIRTYPE), 0), (link, 0), (info("../f", 3), 3))
    assert list(members(path)) == [("../f", b"\0\0\0")]
    assert files_under(tmp_path) == ["a.tar.gz"]
    assert not Path(tmp_path.parent / "f").exists()


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ([(info("big", 5000), 0)], "big is larger than 4000 bytes"),
        ([(info("a", 1500), 1500), (info("b", 1500), 1500)], "unpacks to more than 4000 bytes"),
        ([(info("pax", 1 << 20, tarfile.XHDTYPE), 1 << 20)], "unpacks to more than 4000 bytes"),
        ([(info("short", 3000), 512)], "unexpected end of data"),
    ],
    ids=["member", "sum", "header", "promise"],
)
def test_members_refuses_archives_that_are_too_big_or_lie(tmp_path, infos, message):
    with pytest.raises(DataError, match=message):
        list(members(tar_with(tmp_path / "a.tar.gz", *infos), limit=4000))
