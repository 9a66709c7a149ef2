"""The log of a training, `train_log.jsonl`, which is cut to the last checkpoint if a run is resumed."""

import json
import os
import time
from pathlib import Path
from typing import TextIO

from bara_pyro.runs.atomic import check_there, write_jsonl, writing
from bara_pyro.runs.manifest import LOG, REHEARSED
from bara_pyro.untrusted.files import read_json, read_jsonl
from bara_pyro.untrusted.schemas import LogLine, RehearsedFile


class Log:
    """Writes `train_log.jsonl`: one object per line, with the seconds of training so far.

    Lines after step `start`, from which training continues, are dropped.
    """

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        records = [record for record in read_jsonl(path, LogLine) if record["step"] <= start] if start else []
        write_jsonl(path, records)
        self._since = time.perf_counter() - (records[-1]["seconds"] if records else 0.0)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def add(self, record: dict[str, float]) -> None:
        """Append a record; a `CheckpointError` if the folder was removed meanwhile."""
        seconds = round(time.perf_counter() - self._since, 3)
        with writing(self.path):
            self._file.write(json.dumps({**record, "seconds": seconds}) + "\n")
            self._file.flush()
        check_there(self._file, self.path)

    def sync(self) -> None:
        """Write the records to disk, so that no checkpoint is there without the lines before it."""
        with writing(self.path):
            os.fsync(self._file.fileno())
        check_there(self._file, self.path)

    def close(self) -> None:
        """Close the file; all records have been flushed."""
        with writing(self.path):
            self._file.close()


def train_seconds(out: Path) -> float | None:
    """Return the seconds of a run's training, including split-half calibration, without pauses.

    Returns None if the log does not record them.
    """
    records = read_jsonl(out / LOG, LogLine)
    seconds = records[-1].get("seconds") if records else None
    if seconds is None or not (out / REHEARSED).exists():
        return seconds
    return round(seconds + read_json(out / REHEARSED, RehearsedFile)["seconds"], 3)
