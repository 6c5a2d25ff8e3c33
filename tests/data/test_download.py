import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedgen.data.download import Offer, Remote, download
from fedgen.errors import FedgenError

PAGE = "https://example.org/data"


@pytest.fixture
def server():
    """A server on the loopback device; `files` by path, `asked` what was asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            content = self.server.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files, running.asked = {}, []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def remote(server, name, content, **options):
    server.files[f"/{name}"] = content
    url = f"http://127.0.0.1:{server.server_port}/{name}"
    return Remote(url, name, hashlib.md5(content).hexdigest(), **options)


def test_fetches_checks_and_does_not_fetch_again(server, tmp_path):
    offer = Offer(PAGE, [remote(server, "a.txt", b"hello"), remote(server, "b.txt", b"world" * 1000)])
    for _ in range(2):
        paths = download(offer, tmp_path / "new" / "folder", progress=False)
        assert [path.read_bytes() for path in paths] == [b"hello", b"world" * 1000]
    assert server.asked == ["/a.txt", "/b.txt"]


def test_a_wrong_checksum_leaves_nothing_behind(server, tmp_path):
    offer = Offer(PAGE, [remote(server, "a.txt", b"hello")._replace(md5="0" * 32)])
    with pytest.raises(FedgenError, match=r"a.txt sent is not a.txt: its MD5 is not 0{32}.*" + PAGE):
        download(offer, tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_without_network_it_says_what_to_do_by_hand(server, tmp_path):
    offer = Offer(PAGE, [remote(server, "a.txt", b"hello")])
    server.files.clear()
    with pytest.raises(FedgenError, match=rf"cannot be reached .*get a.txt by hand from {PAGE} into {tmp_path}"):
        download(offer, tmp_path, progress=False)
    closed = Offer(PAGE, [Remote("http://127.0.0.1:9/a.txt", "a.txt", "0" * 32)])
    with pytest.raises(FedgenError, match=rf"cannot be reached .*get a.txt by hand from {PAGE} into {tmp_path}"):
        download(closed, tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def zip_of(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tar_of(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("pack", [zip_of, tar_of])
def test_archives_are_unpacked_once_and_removed(server, tmp_path, pack):
    content = pack({"in/1.bin": b"one", "in/2.bin": b"two", "in/readme": b"no"})
    offer = Offer(PAGE, [remote(server, "all.pack", content, members="*.bin", expected=2)])
    for _ in range(2):
        paths = download(offer, tmp_path, progress=False)
        assert sorted(path.name for path in paths) == ["1.bin", "2.bin"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.bin", "2.bin"]
    assert (tmp_path / "2.bin").read_bytes() == b"two"
    assert len(server.asked) == 1


@pytest.mark.parametrize("pack", [zip_of, tar_of])
def test_members_that_climb_out_are_refused(server, tmp_path, pack):
    offer = Offer(PAGE, [remote(server, "all.pack", pack({"../evil.bin": b"!"}), members="*.bin", expected=1)])
    with pytest.raises(FedgenError, match=r"member '../evil.bin', which climbs out of its folder"):
        download(offer, tmp_path / "inside", progress=False)
    assert not (tmp_path / "evil.bin").exists()


def test_an_archive_of_something_else_is_refused(server, tmp_path):
    offer = Offer(PAGE, [remote(server, "all.pack", zip_of({"x": b""}), members="*.bin", expected=1)])
    with pytest.raises(FedgenError, match=r"has no member \*.bin"):
        download(offer, tmp_path, progress=False)
    broken = Offer(PAGE, [remote(server, "other.pack", b"neither", members="*.bin", expected=1)])
    with pytest.raises(FedgenError, match=r"other.pack cannot be unpacked"):
        download(broken, tmp_path, progress=False)
