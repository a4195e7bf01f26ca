"""Downloads from a server of this process: whole, or nothing and a message that says what happened."""

from __future__ import annotations

import hashlib
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from burnt.data.standard.download import RemoteFile, fetch
from burnt.errors import DataError
from tests import faults
from tests.messages import raises

CONTENT = bytes(range(256)) * 9000


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves the same content under paths that say how."""

    daemon_threads = True
    allow_reuse_address = True
    url = ""
    requests: list[str]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        how = self.path.split("/")[1]
        self.server.requests.append(how)  # type: ignore[attr-defined]
        if how == "missing":
            self.send_error(404)
            return
        body = {"wrong": CONTENT[::-1], "long": CONTENT + b"more", "short": CONTENT[:-1]}.get(how, CONTENT)
        self.send_response(200)
        if how not in ("long", "short"):  # without a length, the end of the connection is the end of the file
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if how == "cut" else body)

    def log_message(self, *_: object) -> None:
        """Nothing: this is a test."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.url, server.requests = f"http://127.0.0.1:{server.server_address[1]}", []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def file(server: Server) -> RemoteFile:
    server.requests.clear()
    url = f"{server.url}/good/data.bin"
    return RemoteFile("data.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), (url,))


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_a_file_is_downloaded_once(file: RemoteFile, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        assert fetch(file, folder).read_bytes() == CONTENT
    assert server.requests == ["good"]
    assert [path.name for path in folder.iterdir()] == ["data.bin"]
    (folder / "data.bin").write_bytes(CONTENT[:7])  # left by a copy that was broken off
    assert fetch(file, folder).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("missing", "HTTP Error 404"),
        ("wrong", f"the checksum differs: {hashlib.sha256(CONTENT[::-1]).hexdigest()}"),
        ("cut", "the connection ended after 1,152,000 bytes"),
        ("short", "the connection ended after 2,303,999 bytes"),
        ("long", "it sends more than 2,304,000 bytes"),
    ],
)
def test_what_is_not_the_file_is_not_kept(
    how: str, words: str, file: RemoteFile, server: Server, tmp_path: Path
) -> None:
    bad = f"{server.url}/{how}/data.bin"
    with pytest.raises(DataError) as error:
        fetch(replace(file, urls=(bad,)), tmp_path)
    text = str(error.value)
    assert f"{bad}: " in text
    assert words in text
    assert f"2,304,000 bytes with SHA-256 {file.sha256}" in text
    assert str(tmp_path / "data.bin") in text
    assert list(tmp_path.iterdir()) == []
    # The next address has it, and a mirror stands for all addresses.
    assert fetch(replace(file, urls=(bad, *file.urls)), tmp_path).read_bytes() == CONTENT
    with pytest.raises(DataError):
        fetch(file, tmp_path / "other", mirror=f"{server.url}/{how}/")


def test_a_server_that_is_not_there(file: RemoteFile, tmp_path: Path) -> None:
    with raises(DataError, "http://127.0.0.1:9/data.bin: [", "by other means"):
        fetch(file, tmp_path, mirror="http://127.0.0.1:9")
    with raises(DataError, "unknown url type: 'data.example/data.bin'", match="cannot be downloaded"):
        fetch(file, tmp_path, mirror="data.example")


def test_a_full_disk_leaves_nothing(file: RemoteFile, tmp_path: Path) -> None:
    at = 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        with faults.operations(at, "full") as done:
            try:
                path = fetch(file, folder)
            except DataError as error:
                text = str(error)
        if not done.failed:
            break
        assert "data.bin cannot be written" in text
        assert "No space left on device" in text
        assert "space for 2,304,000 bytes" in text
        # Only the last step, which makes the name survive a power cut, fails with the file in its place.
        left = folder / "data.bin"
        assert not left.exists() or left.read_bytes() == CONTENT
    assert at > 3
    assert path.read_bytes() == CONTENT
