"""The server of the page: access, addresses, streams and cost."""

import contextlib
import hashlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from made_run import made_run
from penstock.errors import PenstockError
from penstock.watch.web import connections, run_cache
from penstock.watch.web.assets import FOLDER, files
from penstock.watch.web.run_cache import RunCache
from penstock.watch.web.server import PageServer, open_server

Serve = Callable[..., PageServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[PageServer] = []

    def start(host: str = "127.0.0.1", token: str | None = None) -> PageServer:
        server = open_server(RunCache(str(tmp_path)), host, 0, token)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


def get(
    server: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    link.request(method, path, headers=headers)
    answer = link.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_the_server_answers_for_a_run_and_for_the_list(serve: Serve, tmp_path: Path) -> None:
    made_run(tmp_path, "a")
    made_run(tmp_path, "b", steps=20)
    server = serve()
    status, _, text = get(server, "/api/runs")
    assert status == 200
    assert {line["key"] for line in json.loads(text)[""]["runs"]["lines"]} == {"a", "b"}
    _, _, text = get(server, "/api/runs?run=a&run=b")
    found = json.loads(text)
    assert found["a"]["headline"]["steps"] == 40
    assert found["b"]["headline"]["steps"] == 20


@pytest.mark.parametrize("name", ["missing", "../a", "..%2Fa", "%2Fetc", "a%2F..%2Fa", "a%00"])
def test_a_name_in_an_address_is_never_a_path(serve: Serve, tmp_path: Path, name: str) -> None:
    made_run(tmp_path / "below", "a")
    (tmp_path / "runs").mkdir()
    made_run(tmp_path, "a")
    server = serve()
    server.cache.root = str(tmp_path / "runs")
    status, _, text = get(server, f"/api/runs?run={name}")
    assert status == 404
    assert "no run" in text
    assert get(server, f"/api/stream?run={name}")[0] == 404


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/x", "/static/"]
)
def test_other_paths_are_not_found(serve: Serve, path: str) -> None:
    assert get(serve(), path)[0] == 404


def test_files_of_the_page_come_from_here_alone(serve: Serve) -> None:
    server = serve()
    for name in files():
        status, headers, text = get(server, f"/static/{name}")
        assert status == 200
        assert text
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    page = get(server, "/")[2]
    assert "http:" not in page
    assert "https:" not in page
    assert "onload" not in page
    own = [path.read_text() for path in files().values() if path.name in ("app.js", "dom.js")]
    assert not any("innerHTML" in text for text in own)


# Of package/dist in `npm pack uplot@1.6.32`; docs/watch.md says so too.
UPLOT = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def test_the_page_loads_uplot_from_its_own_unchanged_copy(serve: Serve) -> None:
    server = serve()
    page = get(server, "/")[2]
    for name, digest in UPLOT.items():
        assert f'"/static/{name}"' in page
        assert hashlib.sha256(get(server, f"/static/{name}")[2].encode()).hexdigest() == digest
    assert "MIT License" in (FOLDER / "uPlot.LICENSE").read_text()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_get_is_answered(serve: Serve, tmp_path: Path, method: str) -> None:
    made_run(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    server = serve()
    assert get(server, "/api/runs?run=made", method)[0] == 501
    get(server, "/api/runs?run=made")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("host", "good"),
    [("127.0.0.1", True), ("localhost:9999", True), ("[::1]:7070", True), ("evil.example", False)],
)
def test_another_name_that_points_here_is_refused(serve: Serve, host: str, good: bool) -> None:
    assert (get(serve(), "/", Host=host)[0] == 200) is good


def test_an_address_beyond_loopback_needs_a_token(serve: Serve, tmp_path: Path) -> None:
    made_run(tmp_path)
    server = serve("0.0.0.0")
    assert server.token
    assert len(server.token) >= 20
    for path in ("/", "/api/runs", "/static/app.js", "/?token=wrong", "/?token="):
        assert get(server, path)[0] == 401
    status, headers, _ = get(server, f"/?run=made&token={server.token}")
    assert status == 303
    assert headers["Location"] == "/?run=made"
    cookie = headers["Set-Cookie"]
    assert server.token not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert get(server, "/?run=made", Cookie=cookie.split(";")[0])[0] == 200
    assert get(server, "/api/runs", Authorization=f"Bearer {server.token}")[0] == 200
    assert get(server, "/", Cookie=f"{server.cookie}=wrong")[0] == 401
    assert server.token in server.address("made")


def test_a_chosen_token_may_hold_any_characters(serve: Serve) -> None:
    server = serve(token="päß; w=1")
    assert get(server, "/")[0] == 401
    path = server.address().split(str(server.port))[1]
    headers = get(server, path)[1]
    assert get(server, "/", Cookie=headers["Set-Cookie"].split(";")[0])[0] == 200


def test_the_next_free_port_unless_one_was_asked_for(tmp_path: Path) -> None:
    cache = RunCache(str(tmp_path))
    with open_server(cache) as first, open_server(cache) as second:
        assert first.port != second.port
        with pytest.raises(PenstockError, match=f"port {first.port}"):
            open_server(cache, port=first.port)


def test_the_stream_sends_what_changed(serve: Serve, tmp_path: Path) -> None:
    folder = made_run(tmp_path, ended=None)
    server = serve()
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    link.request("GET", "/api/stream?run=made")
    answer = link.getresponse()
    assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    first = json.loads(answer.readline().removeprefix(b"data: "))
    assert first["made"]["headline"]["status"] == "killed"
    assert answer.readline() == b"\n"
    with (folder.journal / "supervisor.events").open("a") as file:
        file.write('{"t": 1790000090.0, "kind": "ended", "result": "done", "error": ""}\n')
    second = json.loads(answer.readline().removeprefix(b"data: "))
    assert second["made"]["headline"]["status"] == "done"
    assert "curve" not in second["made"]  # which is as it was
    link.close()


def test_a_run_is_read_once_a_second_for_any_number_of_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_run(tmp_path)
    read: list[float] = []
    real = run_cache.page_sections
    monkeypatch.setattr(
        run_cache, "page_sections", lambda view: read.append(time.monotonic()) or real(view)
    )
    monkeypatch.setattr(run_cache, "_fingerprint", lambda folder: None)  # as of a run that runs
    cache = RunCache(str(tmp_path))
    until = time.monotonic() + 1.5

    def look() -> None:
        while time.monotonic() < until:
            cache.sections("made")

    many = [threading.Thread(target=look) for _ in range(4)]
    for one in many:
        one.start()
    for one in many:
        one.join()
    assert read
    assert all(b - a >= run_cache.PAUSE_S for a, b in pairwise(read))


def test_a_run_that_has_ended_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made_run(tmp_path)
    monkeypatch.setattr(run_cache, "PAUSE_S", 0.0)
    monkeypatch.setattr(run_cache, "READ_SHARE", 1e9)
    cache = RunCache(str(tmp_path))
    first = cache.sections("made")
    assert cache.sections("made") is first
    (folder.path / "run.toml.new").write_text("")  # something happened in the folder
    assert cache.sections("made") is not first


def test_one_unreadable_run_leaves_the_others(serve: Serve, tmp_path: Path) -> None:
    made_run(tmp_path, "good")
    bad = made_run(tmp_path, "bad")
    (bad.journal / "a0000-r00000.curve").write_bytes(b"of another program altogether" * 9)
    lines = json.loads(get(serve(), "/api/runs")[2])[""]["runs"]["lines"]
    assert {line["key"]: line["status"] for line in lines} == {"good": "done", "bad": "unreadable"}


@pytest.mark.parametrize("token", ["", " ", "\t\n", "short", "       x       "])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_short_or_empty_token_is_refused(tmp_path: Path, host: str, token: str) -> None:
    with pytest.raises(PenstockError, match=r"--token: .* at least 8 characters"):
        open_server(RunCache(str(tmp_path)), host, 0, token)


@pytest.mark.parametrize(
    "path",
    ["/\\evil.com", "//evil.com", "/\\\\evil.com", "\\evil.com", "/.//evil.com", "/%5cevil.com",
     "///evil.com", "http://evil.com/", "/x", "/static\\evil.com"],
)  # fmt: skip
def test_a_redirect_stays_on_the_page(serve: Serve, path: str) -> None:
    server = serve(token="a good token")
    status, headers, _ = raw(server, f"GET {path}?token=a+good+token HTTP/1.1\r\nHost: x\r\n\r\n")
    assert "evil" not in headers.get("Location", "")
    assert status in (303, 404)
    if status == 303:
        assert headers["Location"] == "/"


def raw(server: PageServer, request: str) -> tuple[int, dict[str, str], str]:
    """What is answered to these very bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
        link.sendall(request.encode("latin-1"))
        answer = http.client.HTTPResponse(link)
        answer.begin()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


@pytest.mark.parametrize(
    "name", ["run.toml", "plan.json", "journal", "checkpoints", "journal/supervisor.events"]
)
def test_links_in_a_run_folder_are_not_followed(serve: Serve, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"t": 1790000000.0, "kind": "started", "a": "hunter2"}\nhunter2 = "x')
    folder = made_run(tmp_path / "runs", "made").path
    (folder / name).rename(tmp_path / "moved")
    (folder / name).symlink_to(secret if "." in name else tmp_path / "moved")
    server = serve()
    server.cache.root = str(tmp_path / "runs")
    _, _, listed = get(server, "/api/runs")
    _, _, one = get(server, "/api/runs?run=made")
    assert "hunter2" not in listed + one
    if "/" not in name:
        assert "links in a run folder are not followed" in one
        assert json.loads(listed)[""]["runs"]["lines"][0]["status"] == "unreadable"


@pytest.mark.parametrize(
    "name", ["lock", "journal/supervisor.events", "journal/a0009-r00000.events"]
)
def test_a_pipe_or_link_in_a_run_folder_does_not_hang_the_page(
    serve: Serve, tmp_path: Path, name: str
) -> None:
    folder = made_run(tmp_path, "made").path
    made_run(tmp_path, "other")
    server = serve()
    for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        assert get(server, "/api/runs?run=made")[0] == 200
        assert {
            line["key"] for line in json.loads(get(server, "/api/runs")[2])[""]["runs"]["lines"]
        }


@pytest.fixture
def many() -> Iterator[Callable[[PageServer, int], list[socket.socket]]]:
    """many(server, 100): so many connections that send half a request and wait."""
    opened_: list[socket.socket] = []

    def connect(server: PageServer, count: int) -> list[socket.socket]:
        for _ in range(count):
            link = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            link.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            opened_.append(link)
        return opened_

    yield connect
    for link in opened_:
        link.close()


def threads() -> int:
    return sum("process_request_thread" in one.name for one in threading.enumerate())


def test_slow_clients_do_not_keep_others_out(
    serve: Serve, many: Callable[[PageServer, int], list[socket.socket]]
) -> None:
    server = serve()
    slow = many(server, 300)
    assert get(server, "/")[0] == 200
    assert get(server, "/api/runs")[0] == 200
    most, until = server.connections.most_of_one, time.monotonic() + 30
    while threads() > most + 2 or sum(map(_has_ended, slow)) < 300 - most:  # ended, not yet closed
        assert time.monotonic() < until
        time.sleep(0.05)


def _has_ended(link: socket.socket) -> bool:
    link.settimeout(0.0)
    try:
        return link.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_request_has_to_arrive_in_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.Connections.end_silent, "__defaults__", (0.5,))
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
        began = time.monotonic()
        with contextlib.suppress(OSError):
            for byte in b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000:  # never a whole request
                link.sendall(bytes([byte]))
                time.sleep(0.05)
                if time.monotonic() - began > 20:
                    pytest.fail("a slow request was waited for")
    assert get(server, "/")[0] == 200


def test_one_client_and_all_have_a_most() -> None:
    made = connections.Connections(most=3, most_of_one=2)
    socks = [socket.socket() for _ in range(6)]
    try:
        assert made.add(socks[0], "a")
        assert made.add(socks[1], "a")
        made.works(socks[0])
        made.works(socks[1])
        assert not made.add(socks[2], "a")  # both are being answered
        assert made.add(socks[3], "b")
        assert made.add(socks[4], "c")  # the one of b waits, and makes room
        made.works(socks[4])
        assert not made.add(socks[5], "d")
        made.remove(socks[0])
        assert made.add(socks[2], "a")
    finally:
        for one in socks:
            one.close()


def test_a_stream_is_not_ended_by_newcomers(
    serve: Serve, tmp_path: Path, many: Callable[[PageServer, int], list[socket.socket]]
) -> None:
    made_run(tmp_path)
    server = serve()
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    link.request("GET", "/api/stream?run=made")
    answer = link.getresponse()
    assert answer.readline().startswith(b"data: ")
    assert answer.readline() == b"\n"
    many(server, 200)
    server.connections.end_silent(0.0)
    with (tmp_path / "made" / "journal" / "supervisor.events").open("a") as file:
        file.write('{"t": 1790000090.0, "kind": "ended", "result": "failed", "error": ""}\n')
    assert answer.readline().startswith(b"data: ")
    link.close()
