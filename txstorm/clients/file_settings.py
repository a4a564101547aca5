"""Settings from a file, which another user may have written: those that run code are refused.

Every way from a file to a client passes `code_faults` before the client is made: librdkafka loads libraries when it is
given their names, before it connects to anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_CODE = re.compile(r"plugin\.library\.paths|sasl\.kerberos\.kinit\.cmd|ssl[._]engine[._].*|ssl\.providers|.*_cb")
_CLASSES = ("state_provider", "topology.state.provider")


def code_faults(settings: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each of `settings`, of a client or of a topology, that loads code or runs a program."""
    faults = [
        f"{name}: it loads code or runs a program, so it is not taken from a file; set it in a program of yours"
        for name in settings
        if _CODE.fullmatch(str(name).strip().lower())
    ]
    return faults + [
        f"{name}: a class is code, so it is not taken from a file; set it in a program of yours"
        for name in _CLASSES
        if ":" in str(settings.get(name, ""))
    ]
