"""A small S3 server in memory, over real HTTP: creates, reads, lists and deletes whole objects."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

DATE = "2026-01-01T00:00:00.000Z"


class ObjectServer(ThreadingHTTPServer):
    """The objects, by /bucket/name. `url` is its address."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "penstock",
            "AWS_SECRET_ACCESS_KEY": "penstock-secret",
            "AWS_REGION": "us-east-1",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: ObjectServer

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = self._name()
        with self.server.lock:
            taken = name in self.server.objects and self.headers.get("If-None-Match") == "*"
            if not taken:
                self.server.objects[name] = content
        if taken:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self._answer(200, b"", _tag(content))

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        if "list-type" in asked:
            self._list(asked.get("prefix", [""])[0])
            return
        content = self.server.objects.get(self._name())
        if content is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, content, _tag(content))

    def do_POST(self) -> None:
        """Delete the objects that the body names; one that is not there counts as deleted."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        names = [unescape(name) for name in re.findall(r"<Key>(.*?)</Key>", body)]
        with self.server.lock:
            for name in names:
                self.server.objects.pop(f"{self._name().rstrip('/')}/{name}", None)
        rows = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
        self._answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode())

    def _list(self, prefix: str) -> None:
        bucket = f"{self._name().rstrip('/')}/"
        rows = "".join(
            f"<Contents><Key>{escape(name.removeprefix(bucket))}</Key><Size>{len(content)}</Size>"
            f"<LastModified>{DATE}</LastModified><ETag>{_tag(content)}</ETag></Contents>"
            for name, content in sorted(self.server.objects.items())
            if name.startswith(bucket + prefix)
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        self._answer(200, body.encode())

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _answer(self, status: int, body: bytes, tag: str = "") -> None:
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Serve until the block ends."""
    with ObjectServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
