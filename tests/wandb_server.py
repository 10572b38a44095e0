"""As much of a Weights & Biases server as its client needs to send a run to."""

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789" * 4


class Wandb(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.runs: dict[str, dict[str, Any]] = {}  # by id: project, name, config
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.summary: dict[str, dict[str, Any]] = {}
        self.exits: dict[str, int] = {}
        self.alerts: list[dict[str, Any]] = []
        self.resumed: list[str] = []  # ids that were asked for and known
        self.delay_s = 0.0  # before each answer
        self.hang = threading.Event()  # set: no answer until the test is over
        self.hang_on = ""  # no answer, to paths that hold this or to questions whether it is there
        self.over = threading.Event()

    @property
    def env(self) -> dict[str, str]:
        return {
            "WANDB_BASE_URL": f"http://127.0.0.1:{self.server_port}",
            "WANDB_API_KEY": KEY,
            "WANDB_MODE": "online",
        }

    def steps(self, run: str, value: str) -> list[tuple[int, float]]:
        return [(row["step"], row[value]) for row in self.history.get(run, []) if value in row]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away at its end."""


class _Handler(BaseHTTPRequestHandler):
    server: Wandb
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(self.server.delay_s)
        if self._hangs():
            return
        if self.headers.get("Content-Encoding") == "gzip" or raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        if self.path.startswith("/graphql"):
            asked = json.loads(raw)
            self._reply({"data": self._graphql(asked["query"], asked.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            self._stream(self.path.split("/")[-2], json.loads(raw))
            self._reply({"exitcode": None, "limits": {}})
        else:
            self._reply({})  # the client's own telemetry

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._reply({})

    def do_GET(self) -> None:
        time.sleep(self.server.delay_s)
        if not self._hangs():
            self._reply({})

    def _hangs(self) -> bool:
        server = self.server
        asked = self.command == "GET" or server.hang_on in self.path
        hangs = server.hang.is_set() or bool(server.hang_on and asked)
        if hangs:
            self.server.over.wait()
            self.close_connection = True
        return hangs

    def _graphql(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        server = self.server
        with server.lock:
            if "upsertBucket" in query:
                run = server.runs.setdefault(given["name"], {})
                run |= {k: v for k, v in given.items() if v is not None}
                return {"upsertBucket": {"bucket": self._bucket(given["name"]), "inserted": True}}
            if "createRunFiles" in query:
                url = f"http://127.0.0.1:{server.server_port}/put"
                files = [{"name": name, "uploadUrl": url} for name in given["files"]]
                made = {"runID": "r", "uploadHeaders": [], "files": files}
                return {"createRunFiles": made}
            if "notifyScriptableRunAlert" in query:
                server.alerts.append(given)
                return {"notifyScriptableRunAlert": {"success": True}}
            if "RunResumeStatus" in query:
                known = given["name"] in server.runs
                server.resumed += [given["name"]] if known else []
                return {"model": {"bucket": self._bucket(given["name"]) if known else None}}
        viewer = {"id": "v", "entity": "me", "username": "me", "flags": "{}"}
        return {"viewer": viewer | {"teams": {"edges": []}}, "serverInfo": {"features": []}}

    def _bucket(self, name: str) -> dict[str, Any]:
        run, rows = self.server.runs[name], self.server.history.get(name, [])
        tail = json.dumps([json.dumps(rows[-1])] if rows else [])
        project = {"id": "p", "name": run.get("project"), "entity": {"id": "e", "name": "me"}}
        return {
            "id": "UnVu",
            "name": name,
            "displayName": run.get("displayName"),
            "config": run.get("config", "{}"),
            "summaryMetrics": json.dumps(self.server.summary.get(name, {})),
            "project": project,
            "historyLineCount": len(rows),
            "historyTail": tail,
            "eventsLineCount": 0,
            "eventsTail": "[]",
            "logLineCount": 0,
            "tags": [],
            "wandbConfig": run.get("config", "{}"),
            "files": {"edges": []},
        }

    def _stream(self, run: str, body: dict[str, Any]) -> None:
        server = self.server
        with server.lock:
            files = body.get("files") or {}
            for line in files.get("wandb-history.jsonl", {}).get("content", []):
                server.history.setdefault(run, []).append(json.loads(line))
            for line in files.get("wandb-summary.json", {}).get("content", []):
                server.summary[run] = json.loads(line)
            if body.get("complete"):
                server.exits[run] = int(body.get("exitcode") or 0)

    def _reply(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@contextmanager
def wandb_server() -> Iterator[Wandb]:
    server = Wandb()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
