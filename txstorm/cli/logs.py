"""Where txstorm's log goes while a command runs: to standard error."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def log_to(console: Console, level: str) -> None:
    """Send what ``txstorm`` logs from `level` on to `console`, above the live table if there is one."""
    logger = logging.getLogger("txstorm")
    logger.setLevel(level.upper())
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(logging.Formatter(FORMAT))
    for old in list(logger.handlers):
        if not isinstance(old, logging.NullHandler):
            logger.removeHandler(old)
    logger.addHandler(handler)
