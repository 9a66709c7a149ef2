"""What studies ask for, and the runs that it comes to: jobs of one configuration share one.

folder/<hash>/               the run
folder/records/<hash>.json   its record
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bara_pyro.runs.config import RunConfig, load_config
from experiments.engine.provenance import code_state, same_code
from experiments.engine.record import Record, portable, read_record, record_path


@dataclass(frozen=True)
class Job:
    """What an experiment asks for.

    Attributes:
        settings: dotted settings, as `bara_pyro.runs.config.load_config(overrides=...)` takes them.
        shifted: names of further tasks whose test rows the fitted run is evaluated on.
    """

    settings: Mapping[str, Any]
    shifted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """A configuration to complete, for all the jobs that share it.

    Attributes:
        settings: those of the first job that asks for it.
        folder: of the sweep.
        shifted: the further tasks of all these jobs.
        retry_failed, reuse: see `sweep`.
    """

    config: RunConfig
    settings: dict[str, Any]
    folder: Path
    shifted: tuple[str, ...] = ()
    retry_failed: bool = False
    reuse: str | None = "any"

    @property
    def out(self) -> Path:
        """The folder of the run."""
        return self.folder / self.config.hash

    @property
    def path(self) -> Path:
        """The file of its record."""
        return record_path(self.folder / "records", self.config.hash)

    @property
    def label(self) -> str:
        """What it is called while the sweep is watched."""
        c = self.config
        return f"{c.method.name} on {Path(c.task.name).name}, lr {c.train.lr:g}, seed {c.seed} [{c.hash}]"

    @property
    def gpus(self) -> int:
        """GPUs that it needs for itself, where a cluster hands them out."""
        return int(self.config.backbone.device.startswith("cuda"))

    def record(self) -> Record | None:
        """Return the record that there is."""
        return read_record(self.path) if self.path.exists() else None

    def outdated(self, record: Record | None) -> bool:
        """Return whether it was made by other code, and is to be made again for that."""
        return record is not None and self.reuse == "same" and not same_code(record.get("code"), code_state())

    def lacks_itself(self, record: Record | None) -> bool:
        """Return whether it is still to be trained or evaluated on its own task."""
        return record is None or ("failed" in record and self.retry_failed) or self.outdated(record)

    def lacks(self, record: Record | None) -> list[str]:
        """Return the shifted tasks that it is still to be evaluated on."""
        if record is None or "failed" in record:
            return []
        done = {name: record["shifted"].get(portable(name)) for name in self.shifted}
        return [name for name, it in done.items() if not it or ("failed" in it and self.retry_failed)]

    def done(self, record: Record | None) -> bool:
        """Return whether there is nothing left to do."""
        return not self.lacks_itself(record) and not self.lacks(record)

    def failures(self, record: Record) -> list[str]:
        """Return a line for each thing that it was asked for and failed at."""
        if "failed" in record:
            return [f"{self.label}: {record['failed']}"]
        done = {name: record["shifted"].get(name, {}) for name in map(portable, self.shifted)}
        return [f"{self.label}, on {name}: {it['failed']}" for name, it in done.items() if "failed" in it]


def plan(
    jobs: Sequence[Job], folder: Path, retry_failed: bool = False, reuse: str | None = "any"
) -> tuple[list[str], dict[str, Run]]:
    """Return the hash of each job's configuration, and the runs by hash; see `sweep` for what it raises."""
    hashes: list[str] = []
    runs: dict[str, Run] = {}
    for job in jobs:
        config = load_config(overrides=dict(job.settings))
        earlier = runs.get(config.hash)
        shifted = tuple(dict.fromkeys((*(earlier.shifted if earlier else ()), *job.shifted)))
        settings = earlier.settings if earlier else dict(job.settings)
        runs[config.hash] = Run(config, settings, folder, shifted, retry_failed, reuse)
        hashes.append(config.hash)
    return hashes, runs


def found(runs: Mapping[str, Run], known: Mapping[str, Record]) -> dict[str, Record | None]:
    """Return what there is of each run: in the folder of the sweep, or else among what is `known`."""
    return {key: run.record() or known.get(key) for key, run in runs.items()}
