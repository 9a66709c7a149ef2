"""Run the tests of each mutant in a fork of one process that has imported them: a few seconds a mutant.

cd mutants; python -m benchmarks.mutate [--functions PATTERN ..] [--most SECONDS]     `make mutants` calls it

`mutmut run` has made the folder, and stored which tests run a function and how long they take. It starts
Python anew for every mutant, as torch does not survive a fork once it has computed; here it does not compute
before. What was tried is not tried again. Results go to where mutmut stores them.
"""

import json
import os
import signal
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from fnmatch import fnmatch
from itertools import accumulate
from math import inf
from pathlib import Path

import pytest
import torch

NO_TEST, TOO_LONG = 33, 36  # exit codes of mutmut, beside pytest's
KNOWN = (0, 1, 3, NO_TEST, TOO_LONG)
QUIET = ["-q", "-x", "-p", "no:cacheprovider"]


def main() -> None:
    """Import the tests, then try every mutant that has no result."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--functions", nargs="+", default=["*"], help="patterns of names, as in mutmut")
    parser.add_argument(
        "--most", type=float, default=inf, help="run only the fastest tests of a mutant, this long in all"
    )
    args = parser.parse_args()
    stats = json.loads(Path("mutmut-stats.json").read_text())
    seconds, tests = stats["duration_by_test"], stats["tests_by_mangled_function_name"]
    open_ = [
        (path, mutant)
        for path in sorted(Path().rglob("*.py.meta"))
        for mutant, code in json.loads(path.read_text())["exit_code_by_key"].items()
        if code is None and any(fnmatch(mutant, pattern) for pattern in args.functions)
    ]
    os.environ["MUTANT_UNDER_TEST"] = ""
    torch.set_num_threads(1)
    own = {mutant: fastest(tests.get(mutant.rpartition("__mutmut_")[0], []), seconds, args.most)
           for _, mutant in open_}  # fmt: skip
    files = sorted({test.partition("::")[0] for some in own.values() for test in some})
    pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *files])
    every = sorted({test for some in own.values() for test in some})
    if every and tried("", every, 600 + 10 * sum(seconds.get(test, 0.0) for test in every)):
        sys.exit(
            "The tests fail without a mutant, so they cannot judge any: run `make mutants` in a new clone."
        )
    for path, mutant in open_:
        ordered = own[mutant]
        limit = 30 + 10 * sum(seconds.get(test, 0.0) for test in ordered)
        began = time.monotonic()
        code = tried(mutant, ordered, limit) if ordered else NO_TEST
        if code in KNOWN:
            stored = json.loads(path.read_text())
            stored["exit_code_by_key"][mutant] = code
            path.write_text(json.dumps(stored, indent=4))
        print(f"{mutant}: {code}, {time.monotonic() - began:.0f} s", flush=True)


def fastest(tests: list[str], seconds: Mapping[str, float], most: float) -> list[str]:
    """Return tests by their duration, as many as take no more than `most` seconds in all."""
    ordered = sorted(tests, key=lambda test: seconds.get(test, 0.0))
    totals = accumulate(seconds.get(test, 0.0) for test in ordered)
    return [test for test, total in zip(ordered, totals, strict=True) if total <= most]


def tried(mutant: str, tests: list[str], limit: float) -> int:
    """Return the exit code of pytest on the tests of a mutant, in a fork that has `limit` seconds."""
    names = Path("mutate-tests.txt")
    names.write_text("\n".join(tests))
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.environ["MUTANT_UNDER_TEST"] = mutant
        signal.alarm(int(limit))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = 2  # no result
        try:
            code = int(pytest.main([*QUIET, f"@{names}"]))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return TOO_LONG if code == -signal.SIGALRM else code


if __name__ == "__main__":
    main()
