"""Buckets and credentials of runs on machines elsewhere: found missing before anything is paid for,
and not needed by `--dry-run`.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from engine_runs import job_of
from penstock.errors import PenstockError
from penstock.launch.dry_run import dry_run
from penstock.launch.verify import verify

DATASET = "s3://bucket/datasets/pages@12"


class Refuses(BaseHTTPRequestHandler):
    """An S3 server that has no bucket, or gives nobody access."""

    status, code = 403, "AccessDenied"

    def do_GET(self) -> None:
        body = f"<Error><Code>{self.code}</Code></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{found.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret-of-somebody")
        monkeypatch.setenv("KUBECONFIG", "/none")
        yield
        found.shutdown()


@pytest.mark.parametrize("engine", ["sky", "kubernetes"])
def test_a_dry_run_needs_no_bucket_and_no_credentials(engine):
    found = dry_run(job_of(engine, f"data.dataset={DATASET}").run)
    assert found.engine == engine
    assert list(yaml.safe_load_all(found.text))
    (note,) = found.notes
    assert note.startswith(f"not checked: {DATASET} cannot be reached: ")
    assert "s3cret" not in found.text + note


@pytest.mark.parametrize("engine", ["sky", "kubernetes"])
def test_a_dry_run_refuses_what_is_wrong_by_itself(engine):
    with pytest.raises(PenstockError, match=r"^guard.durable: missing"):
        dry_run(job_of(engine, f"data.dataset={DATASET}", "guard.durable=null").run)


@pytest.mark.parametrize("engine", ["sky", "kubernetes"])
def test_a_bucket_that_refuses_these_credentials_is_refused(engine):
    refused = str(verify(job_of(engine).run).refused)
    assert refused.startswith('guard.durable = "s3://bucket/runs": cannot be reached: ')
    assert "access was refused (AccessDenied); check the credentials" in refused
    assert "s3cret" not in refused


@pytest.mark.parametrize("engine", ["sky", "kubernetes"])
def test_a_bucket_that_is_not_there_is_refused(engine, monkeypatch):
    monkeypatch.setattr(Refuses, "status", 404)
    monkeypatch.setattr(Refuses, "code", "NoSuchBucket")
    refused = str(verify(job_of(engine).run).refused)
    assert refused.startswith('guard.durable = "s3://bucket/runs": cannot be reached: ')
    assert "no such object or bucket" in refused
    assert refused.endswith("; create it, or name another")
