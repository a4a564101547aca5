"""Schema registry client, and decoder for Avro in Confluent's format: a zero byte, four bytes of schema id, the value.

This is the only module that imports `fastavro`. It queries the registry over HTTP with the standard library;
docs/design/024-kafka-spouts.md explains why it does not use the client of confluent-kafka.
"""

from __future__ import annotations

import base64
import io
import json
import ssl
import struct
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from txstorm.errors import FailedException, MissingDependency, SettingError, SpoutError
from txstorm.masks import masked_url

try:
    import fastavro
    from fastavro.schema import SchemaParseException
except ModuleNotFoundError:
    raise MissingDependency("fastavro", "avro") from None

_HEADER = struct.Struct(">bI")


class SchemaRegistry:
    """Client for one schema registry, which requests each schema once and caches it.

    `ca_file`: PEM file of the certificate authority; None: the system's authorities. `seconds`: timeout of one request.
    """

    def __init__(
        self, url: str, auth: tuple[str, str] | None = None, ca_file: str | None = None, seconds: float = 5.0
    ) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if auth is not None:
            token = base64.b64encode(":".join(auth).encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        handlers: list[urllib.request.BaseHandler] = [_Redirects()]
        if url.startswith("https:"):
            context = ssl.create_default_context(cafile=ca_file)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)
        self._seconds = seconds
        self._schemas: dict[int, Any] = {}

    def check(self) -> None:
        """Raise `SpoutError` unless the registry can be reached."""
        try:
            self._get("/subjects")
        except (FailedException, LookupError) as error:
            raise SpoutError(f"schema registry {error}; check its address") from None

    def decode(self, data: bytes) -> Any:
        """Decode an Avro value in Confluent's format.

        Raises:
            ValueError: the bytes are not in Confluent's format, or do not match the schema that they refer to.
            FailedException: the registry cannot be reached at the moment.
            SpoutError: the registry refuses the request.
        """
        if len(data) < _HEADER.size or data[0] != 0:
            raise ValueError(f"begins with {data[:5]!r}, expected a zero byte and the four bytes of a schema's id")
        schema = self._schema(_HEADER.unpack_from(data)[1])
        body = io.BytesIO(data[_HEADER.size :])
        try:
            return fastavro.schemaless_reader(body, schema, None)
        except (EOFError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"is not of the schema it names: {type(error).__name__}: {error}") from None

    def _schema(self, number: int) -> Any:
        if number not in self._schemas:
            try:
                found = self._get(f"/schemas/ids/{number}")
            except LookupError as error:
                raise ValueError(f"names schema {number}, which the registry does not have ({error})") from None
            self._schemas[number] = self._parsed(found, number)
        return self._schemas[number]

    def _parsed(self, found: Any, number: int) -> Any:
        kind = found.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise ValueError(f"names schema {number}, which is of type {kind}, expected AVRO")
        known: dict[str, Any] = {}
        try:
            self._load(found.get("references", []), known)
            return fastavro.parse_schema(json.loads(found["schema"]), named_schemas=known)
        except (SchemaParseException, KeyError, ValueError) as error:
            raise ValueError(f"names schema {number}, which cannot be used: {error}") from None

    def _load(self, references: Any, known: dict[str, Any]) -> None:
        """Load the schemas that a schema references, dependencies first."""
        for one in references:
            subject = urllib.parse.quote(one["subject"], safe="")
            found = self._get(f"/subjects/{subject}/versions/{int(one['version'])}")
            self._load(found.get("references", []), known)
            if one["name"] not in known:
                fastavro.parse_schema(json.loads(found["schema"]), named_schemas=known)

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(self._url + path, headers=self._headers)  # noqa: S310 - checked by checked_url
        try:
            with self._opener.open(request, timeout=self._seconds) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise self._refusal(path, error) from None
        except (OSError, ValueError) as error:
            raise FailedException(f"{self._url}{path}: {getattr(error, 'reason', error)}") from None

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> Exception:
        said = f"{self._url}{path}: HTTP {error.code} {error.reason}"
        if error.code == 404:
            return LookupError(said)
        if error.code in (401, 403):
            return SpoutError(f"schema registry {said}; check user and password")
        if 300 <= error.code < 400:
            there = error.headers.get("Location", "")
            return SpoutError(
                f"schema registry {said}: expected an answer, got a redirect to {masked_url(there)!r}; use that address"
            )
        return FailedException(said)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that stays on the same host, since the password header would be sent to any other host, too."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Follow a redirect within the same host; return None for another host, which makes the redirect an error."""
        before, after = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def checked_url(url: str) -> str:
    """Return `url` if it is a valid address of a registry; raise `SettingError` otherwise."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise SettingError(
            f"schema registry: expected http://HOST:PORT or https://…, got {masked_url(url)!r}; credentials go into "
            "auth="
        )
    return url
