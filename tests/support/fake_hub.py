"""A hub of datasets on this machine: what Hugging Face's client asks of the real one, by HTTP."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

_COMMIT = "0" * 40
_REVISION = "refs/convert/parquet"


@contextmanager
def serving(repo: str, folder: Path) -> Iterator[str]:
    """Serve the files of a folder as those of a repository; yield the hub's address."""
    handler = type("Repository", (_Hub,), {"repo": repo, "folder": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Hub(BaseHTTPRequestHandler):
    repo = ""
    folder = Path()

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: tests read what commands print."""

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        listed = f"/api/datasets/{self.repo}/tree/{_REVISION}"
        resolved = f"/datasets/{self.repo}/resolve/{_REVISION}/"
        file = self.folder / path.removeprefix(resolved)
        content = b""
        status = 404
        if path == listed:
            status, content = 200, self._listing()
        elif path.startswith(resolved) and file.is_file():
            status, content = 200, file.read_bytes()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json" if path == listed else "binary")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", _COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _listing(self) -> bytes:
        rows = []
        for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            content = file.read_bytes()
            oid = hashlib.sha1(content).hexdigest()
            name = file.relative_to(self.folder).as_posix()
            rows.append({"type": "file", "oid": oid, "size": len(content), "path": name})
        return json.dumps(rows).encode()
