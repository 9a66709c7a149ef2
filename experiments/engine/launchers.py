"""Where the runs of a sweep are worked on: in this process, in processes of this machine, on a Ray cluster.

A launcher maps a function over items and yields `(item, result)` as they finish; that is all a sweep knows of
it. The function does not raise; where its process is lost, the result is `Lost`.

Processes are those of `concurrent.futures`, one pool of one worker for each that works at a time: a pool is
broken as a whole by the loss of a worker, as loky's is. Ray keeps the other items, and starts more slowly.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context, parent_process
from typing import Any, Protocol

import torch

from bara_pyro.cli.terminal import say
from bara_pyro.errors import ConfigError


class Item(Protocol):
    """What is worked on: it can be pickled and says how many GPUs it needs."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that it needs for itself, where a cluster hands them out."""


@dataclass(frozen=True)
class Lost:
    """The result of an item whose process was lost.

    Attributes:
        reason: one sentence.
    """

    reason: str


Work = Callable[[Any], Any]


def say_done(number: int, total: int, outcome: str, begun: float) -> None:
    """Print that an item is done, with the time elapsed and the time left at this pace.

    Args:
        number: items that are done, this one among them.
        total: all items.
        outcome: what became of this one.
        begun: the `time.perf_counter()` at which the work began.
    """
    elapsed = time.perf_counter() - begun
    times = [f"{_clock(elapsed)} elapsed"]
    times += [f"about {_clock(elapsed / number * more)} left"] if (more := total - number) else []
    say(f"[{number}/{total}] {outcome} ({', '.join(times)})")


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


Results = Iterator[tuple[Any, Any]]
Begin = Callable[[Any], Future[Any]]
Launch = Callable[[Work, Sequence[Item], int], Results]


def serial(work: Work, items: Sequence[Item], workers: int) -> Results:
    """Work on one item after the other in this process, for debugging; `workers` is not looked at."""
    for item in items:
        yield item, work(item)


def processes(work: Work, items: Sequence[Item], workers: int) -> Results:
    """Work in `workers` processes of this machine, each with one torch thread.

    One that is lost (killed, out of memory) costs the item it was at and is replaced. All end with this
    process, however it ends.
    """
    given: dict[ProcessPoolExecutor, Future[Any]] = {}  # what each was given last

    def begin(item: Item) -> Future[Any]:
        free = (pool for pool, future in given.items() if future.done() and not future.exception())
        # Forking a process whose libraries run threads can leave the child with a lock nobody frees.
        pool = next(free, None) or ProcessPoolExecutor(1, get_context("spawn"), _prepare)
        given[pool] = pool.submit(work, item)
        return given[pool]

    try:
        lost = "Its process was lost: killed, or out of memory."
        yield from _in_turn(items, workers, begin, BrokenProcessPool, lost)
    finally:
        for pool in given:
            for process in (pool._processes or {}).values():
                process.terminate()  # at once: its run goes on from its checkpoint
            pool.shutdown(cancel_futures=True)


def _in_turn(
    items: Sequence[Item], workers: int, begin: Begin, lost: type[Exception], reason: str
) -> Results:
    """Keep `workers` items at work until none is left; an item that ended in `lost` is one."""
    waiting, busy = deque(items), dict[Future[Any], Item]()
    while waiting or busy:
        while waiting and len(busy) < workers:
            item = waiting.popleft()
            busy[begin(item)] = item
        for future in wait(busy, return_when=FIRST_COMPLETED).done:
            error = future.exception()
            said = reason.format(" ".join(str(error).split())[:300])
            yield busy.pop(future), Lost(said) if isinstance(error, lost) else future.result()


def _prepare() -> None:
    """Begin a worker."""
    # Ctrl-C reaches the whole group of processes: the parent decides, and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    """End this process as soon as its parent is gone: what it writes is whole at any moment."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def on_ray(work: Work, items: Sequence[Item], workers: int) -> Results:
    """Work on a Ray cluster, at most `workers` items at a time.

    The cluster is that of the environment variable RAY_ADDRESS, or a local one of `workers` processes. All
    its machines must see the same folders. An item is tried once: Ray repeats nothing.

    Raises:
        ConfigError: Ray is not installed, or the items need a GPU and the cluster has none.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "The launcher 'ray' needs Ray, which is not installed: pip install 'bara-pyro[ray]', "
            "or choose --launcher processes."
        ) from error
    ours = not ray.is_initialized()
    if ours:
        local = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
        ray.init(log_to_driver=False, **local)
    try:
        if any(item.gpus for item in items) and not ray.cluster_resources().get("GPU"):
            raise ConfigError("The Ray cluster has no GPU: choose --device cpu, or another cluster.")
        remote = ray.remote(num_cpus=1, max_retries=0)(_alone)

        def begin(item: Item) -> Future[Any]:
            future: Future[Any] = remote.options(num_gpus=item.gpus).remote(work, item).future()
            return future

        lost = "Its Ray worker was lost: {}"
        yield from _in_turn(items, workers, begin, ray.exceptions.RayError, lost)
    finally:
        if ours:
            ray.shutdown()


def _alone(work: Work, item: Item) -> Any:
    """Work on an item with one thread."""
    torch.set_num_threads(1)
    return work(item)


LAUNCHERS: dict[str, Launch] = {"processes": processes, "serial": serial, "ray": on_ray}
