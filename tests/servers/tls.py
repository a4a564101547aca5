"""TLS certificates for test servers, created once per checkout with Java's keytool."""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from servers.java import ROOT, java

MADE = ROOT / ".cache" / "certificates"
PASSWORD = "changeit"  # required by Java, but the keys protect nothing


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1 and localhost; it is also the certificate that clients trust."""

    keystore: Path  # PKCS12 with the key, for servers
    pem: Path  # only the certificate, for clients to trust


def certificate(name: str) -> Certificate:
    """Return the certificate `name`, created if missing; each has its own key, so trust in one excludes all others."""
    place = MADE / name
    if not place.exists():
        MADE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=MADE, prefix=f".{name}-") as work:
            _make(Path(work) / name)
            try:
                os.rename(Path(work) / name, place)
            except OSError:  # another process has created it
                if not place.exists():
                    raise
    return Certificate(place / "keystore.p12", place / "certificate.pem")


def _make(place: Path) -> None:
    place.mkdir()
    key = ["-genkeypair", "-keyalg", "EC", "-dname", "CN=localhost", "-validity", "3650"]
    _keytool(place, *key, "-ext", "san=ip:127.0.0.1,dns:localhost")
    _keytool(place, "-exportcert", "-rfc", "-file", str(place / "certificate.pem"))


def _keytool(place: Path, *arguments: str) -> None:
    store = ["-storetype", "PKCS12", "-keystore", str(place / "keystore.p12"), "-storepass", PASSWORD]
    command = [java("keytool"), *arguments, *store, "-alias", "server"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
