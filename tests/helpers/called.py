"""Client of the fork server in `programs`: starts a Python program in 20 ms, for shell scripts that call it repeatedly.

``called.py SOCKET ARGUMENT...`` runs ``python ARGUMENT...`` with its own standard files, and exits as that exits.
"""

import array
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence


def ask(
    address: str,
    arguments: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    files: Sequence[int],
    *,
    session: bool = False,
) -> socket.socket:
    """Request a program with these standard files from the fork server, which returns its pid, then its exit status."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    data = json.dumps({"arguments": list(arguments), "cwd": cwd, "env": dict(env), "session": session}).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    connection.sendmsg([len(data).to_bytes(4, "big")], rights)
    connection.sendall(data)
    return connection


def main(address: str, *arguments: str) -> None:
    """Run a program and exit with its status or signal; SIGINT and SIGTERM are forwarded to it."""
    answers = ask(address, arguments, os.getcwd(), os.environ, (0, 1, 2)).makefile("r")
    pid = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(pid, number))
    status = int(answers.readline())
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
