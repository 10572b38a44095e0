"""A small HTTP server with ranges and faults, for tests of what reads from afar."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@dataclass
class Faults:
    """Each fault is spent by the request that meets it."""

    busy: int = 0  # answers of 503
    cut: int = 0  # answers that stop half-way
    flip: int = 0  # answers with one bit changed
    ranges: bool = True
    asked: list[str] = field(default_factory=list)  # paths, with the range
    lock: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, blocks: int) -> bool:
        """Until so many parts of token files were asked for."""
        with self.lock:
            return self.lock.wait_for(lambda: len(self.blocks()) >= blocks, timeout=10)

    def blocks(self) -> list[str]:
        return [one for one in self.asked if ".bin" in one]

    def spend(self, kind: str) -> bool:
        with self.lock:
            left = getattr(self, kind)
            setattr(self, kind, max(0, left - 1))
            return left > 0


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, Faults]]:
    faults = Faults()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = folder / unquote(self.path.split("?")[0]).lstrip("/")
            asked = self.headers.get("Range", "")
            with faults.lock:
                faults.asked.append(f"{path.name} {asked}".strip())
                faults.lock.notify_all()
            if body and faults.spend("busy"):
                self.send_error(503)
            elif not path.is_file():
                self.send_error(404)
            else:
                self._send(path.read_bytes(), asked if faults.ranges else "", body)

        def _send(self, content: bytes, asked: str, body: bool) -> None:
            total = len(content)
            if match := re.fullmatch(r"bytes=(\d+)-(\d+)", asked):
                first, last = int(match[1]), min(int(match[2]), total - 1)
                if first >= total:
                    self.send_error(416)
                    return
                content = content[first : last + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"one"')
            self.send_header("Last-Modified", "Sun, 15 Nov 2026 08:00:00 GMT")
            self.end_headers()
            if not body:
                return
            if faults.spend("flip"):
                content = bytes([content[0] ^ 1]) + content[1:]
            if faults.spend("cut"):
                content, self.close_connection = content[: len(content) // 2], True
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
