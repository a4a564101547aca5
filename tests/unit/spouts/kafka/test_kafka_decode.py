"""Decoding of Kafka keys and values column by column, Avro with an HTTP schema registry, and partition digests."""

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cloudpickle
import fastavro
import numpy as np
import pyarrow as pa
import pytest

from txstorm.errors import FailedException, SettingError, SpoutError
from txstorm.spouts import Avro
from txstorm.spouts.kafka.decode import decoder
from txstorm.spouts.kafka.records import PartitionDigest


def column(kind, raw):
    found, bad = decoder(kind, "value").column(raw)
    return (found.to_pylist() if isinstance(found, pa.Array) else found), bad


def test_bytes_text_json_and_unknown_decoders():
    assert column("bytes", [b"\xff", None]) == ([b"\xff", None], {})
    assert column("utf-8", ["é".encode(), None, b""]) == (["é", None, ""], {})
    assert column("json", [b'{"a": 1}', None, b"[2]"]) == ([{"a": 1}, None, [2]], {})
    assert column(int, [b"7", None]) == ([7, None], {})
    with pytest.raises(SettingError, match=r"value is 'yaml', expected one of \['bytes', 'utf-8', 'json'\]"):
        decoder("yaml", "value")


@pytest.mark.parametrize(("kind", "wrong"), [("utf-8", b"\xff"), ("json", b"{"), (int, b"x")])
def test_undecodable_records_are_reported_per_row(kind, wrong):
    values, bad = column(kind, [b"1", wrong, b"2", wrong])
    assert [values[row] is None for row in range(4)] == [False, True, False, True]
    assert sorted(bad) == [1, 3]
    assert "Error" in bad[1]


PLACE = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
VISIT = {
    "type": "record",
    "name": "Visit",
    "fields": [{"name": "user", "type": "string"}, {"name": "place", "type": "Place"}],
}


class Registry(BaseHTTPRequestHandler):
    """A fake HTTP schema registry that serves only the requests of these tests."""

    asked: list[str] = []
    moved: dict[str, str] = {}
    answers = {
        "/subjects": ["visit"],
        "/schemas/ids/7": {"schema": json.dumps("long")},
        "/schemas/ids/8": {
            "schema": json.dumps(VISIT),
            "references": [{"name": "Place", "subject": "a place", "version": 2}],
        },
        "/subjects/a%20place/versions/2": {"schema": json.dumps(PLACE)},
        "/schemas/ids/9": {"schema": "syntax = 'proto3'", "schemaType": "PROTOBUF"},
    }

    def do_GET(self):
        self.asked.append(self.path)
        if self.headers.get("Authorization") != "Basic dXNlcjpzZWNyZXQ=":
            self._send(401, {"error_code": 401, "message": "Unauthorized"})
        elif self.path in self.moved:
            self._send(302, None, Location=self.moved[self.path])
        elif self.path in self.answers:
            self._send(200, self.answers[self.path])
        else:
            self._send(404, {"error_code": 40403, "message": "Schema not found"})

    def _send(self, status, body, **headers):
        data = json.dumps(body).encode()
        self.send_response(status)
        headers |= {"Content-Type": "application/vnd.schemaregistry.v1+json", "Content-Length": str(len(data))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def registry():
    Registry.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def encoded(number, schema, value, named=None):
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema, named_schemas=named or {}), value)
    return b"\0" + number.to_bytes(4, "big") + body.getvalue()


def test_avro_schemas_are_requested_once_and_invalid_values_have_distinct_errors(registry):
    known: dict = {}
    fastavro.parse_schema(PLACE, named_schemas=known)
    visit = {"user": "u", "place": {"city": "Porto"}}
    data = encoded(8, VISIT, visit, known)
    avro = cloudpickle.loads(cloudpickle.dumps(Avro(registry, auth=("user", "secret"))))
    avro.check()
    assert column(avro, [encoded(7, "long", 42), data, None, data]) == ([42, visit, None, visit], {})
    assert sorted(Registry.asked) == ["/schemas/ids/7", "/schemas/ids/8", "/subjects", "/subjects/a%20place/versions/2"]
    wrong = [b"plain", encoded(6, "long", 1), encoded(9, "long", 1), encoded(8, "long", 1), b""]
    values, bad = column(Avro(registry, auth=("user", "secret")), wrong)
    assert values == [None] * 5
    assert "zero byte" in bad[0] and "schema 6, which the registry does not have" in bad[1]
    assert "PROTOBUF" in bad[2] and "not of the schema" in bad[3] and "zero byte" in bad[4]


def test_a_registry_that_denies_access_or_is_unreachable(registry):
    with pytest.raises(SpoutError, match=r"HTTP 401 .*user and password"):
        Avro(registry).check()
    away = Avro("http://127.0.0.1:1")
    with pytest.raises(SpoutError, match="refused"):
        away.check()
    # The registry was reachable at the start, so the batch is replayed.
    with pytest.raises(FailedException, match="refused"):
        away.column([encoded(7, "long", 1)])


def test_a_redirect_to_another_host_is_not_followed_as_it_would_get_the_password(registry, monkeypatch):
    avro = Avro(registry, auth=("user", "secret"))
    monkeypatch.setitem(Registry.moved, "/subjects", f"{registry}/schemas/ids/7")
    avro.check()
    assert Registry.asked == ["/subjects", "/schemas/ids/7"]
    Registry.moved["/subjects"] = f"{registry}/schemas/ids/7".replace("127.0.0.1", "localhost")
    with pytest.raises(SpoutError, match=r"expected an answer, got a redirect to .*use that address"):
        avro.check()
    assert Registry.asked == ["/subjects", "/schemas/ids/7", "/subjects"]


@pytest.mark.parametrize("url", ["registry:8081", "file:///etc/passwd", "http://user:secret@registry"])
def test_invalid_registry_urls_are_rejected(url):
    with pytest.raises(SettingError) as caught:
        Avro(url)
    assert "secret" not in str(caught.value)


def digest(*pieces, extent=(0, 10)):
    made = PartitionDigest()
    for offsets, keys, values in pieces:
        made.add(np.array(offsets, np.int64), keys, values)
    return made.digest(extent)


def test_a_digest_depends_on_records_not_on_how_they_are_split():
    whole = digest(([0, 1, 4], [b"a", None, b""], [b"x", b"yz", None]))
    assert digest(([0], [b"a"], [b"x"]), ([1, 4], [None, b""], [b"yz", None])) == whole
    others = [
        digest(([0, 1, 5], [b"a", None, b""], [b"x", b"yz", None])),
        digest(([0, 1, 4], [b"a", b"", b""], [b"x", b"yz", None])),
        digest(([0, 1, 4], [b"a", None, b""], [b"xy", b"z", None])),
        digest(([0, 1, 4], [b"a", None, b""], [b"x", b"yz", None]), extent=(0, 11)),
    ]
    assert whole not in others and len(set(others)) == 4
