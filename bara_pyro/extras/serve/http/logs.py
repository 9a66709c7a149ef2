"""Log a server's warnings and errors as single lines."""

import logging
from pathlib import Path
from traceback import extract_tb
from typing import Any

MOST = 400
"""Most characters of a line."""


class OneLine(logging.Formatter):
    """Format a record as one line; an exception as its type, message and location."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        line = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            last = [*extract_tb(error.__traceback__)][-1:]
            where = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in last)
            line = f"{line} ({type(error).__name__}: {error}){where}"
        line = " ".join(line.split())
        return f"{record.levelname}: {line if len(line) <= MOST else f'{line[: MOST - 3]}...'}"


def log_config() -> dict[str, Any]:
    """Return uvicorn's logging configuration: warnings and errors of uvicorn and asyncio."""
    logger = {"handlers": ["terminal"], "level": "WARNING", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": OneLine}},
        "handlers": {"terminal": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {name: logger for name in ("uvicorn", "asyncio")},
    }
