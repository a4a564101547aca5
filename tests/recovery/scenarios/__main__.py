"""Runs a scenario, and ends without the clean-up of an interpreter, which costs a fork as much as a transaction."""

import os
import sys
import traceback

from scenarios import run

status = 0
try:
    run(*sys.argv[1:])
except Exception:  # noqa: BLE001 - as the interpreter prints it
    traceback.print_exc()
    status = 1
sys.stdout.flush()
os._exit(status)
