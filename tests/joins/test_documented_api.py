"""A store server written from the documented API alone, in the standard library, behind a `RestStore`; A10, A11."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from txstorm.joins import RestStore
from txstorm.testing import check_join_store


class Storage:
    """Rows by the JSON texts of key and id, and a mark."""

    def __init__(self):
        self.rows, self.mark, self.lock = {}, None, threading.Lock()

    def answer(self, method, path, body):
        with self.lock:
            return getattr(self, f"{method.lower()}_{path.strip('/')}")(**body)

    def get_store(self):
        return {"api": 1, "store": "documented", "max_body_bytes": 1 << 20}

    def post_rows(self, rows):
        for key, time, id, fields in rows:
            self.rows.setdefault(json.dumps(key), {}).setdefault(json.dumps(id), (time, id, fields))
        return {"rows": len(rows)}

    def post_lookups(self, keys, start, end):
        def wanted(key):
            rows = self.rows.get(json.dumps(key), {}).values()
            return sorted(
                (list(row) for row in rows if (start is None or row[0] >= start) and (end is None or row[0] <= end)),
                key=lambda row: row[:2],
            )

        return {"rows": [wanted(key) for key in keys]}

    def post_expiry(self, before):
        for rows in self.rows.values():
            for id in [id for id, row in rows.items() if row[0] < before]:
                del rows[id]
        return {"before": before}

    def get_mark(self):
        return {"mark": self.mark}

    def put_mark(self, expected, mark):
        replaced = self.mark == expected
        self.mark = mark if replaced else self.mark
        return {"replaced": replaced}


@pytest.fixture
def url():
    """Yield the URL of the server; some requests are answered with 503, every fourth is executed twice."""
    storage, requests = Storage(), 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def do_GET(self):
            nonlocal requests
            requests += 1
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(text) if text else {}
            status, answer = 503, {"detail": "busy"}
            if self.headers.get("Authorization") != "Bearer right":
                status, answer = 401, {"detail": "the token is missing or wrong"}
            elif requests % 50:
                status = 200
                for _ in range(1 if requests % 4 else 2):
                    answer = storage.answer(self.command, self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_GET  # noqa: N815 - names of the base class

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_any_server_of_the_api_is_a_store(url):
    check_join_store(lambda: RestStore(url, token="right"), seeds=range(4))
