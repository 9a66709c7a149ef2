"""Merge the results of mutation runs by function into tests/mutants.json.

python -m benchmarks.mutants [--mutants FOLDER]     after `mutmut run`, complete or not

A function is checked when all its mutants were tried. Results are stored with mutmut's hash of its code, so
they remain valid until the code changes or the function is tried again. Prints the score and the names to
pass to `mutmut run` next. "Caught": a test failed or ran into the time limit. "Not covered": no test of the
selected folders runs the mutant.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bara_pyro.atomic import write_json
from bara_pyro.errors import DataError
from bara_pyro.untrusted.files import read_json
from experiments.engine.provenance import code_state

KEPT = Path(__file__).parents[1] / "tests" / "mutants.json"
# Exit codes of mutmut for a mutant (None: not tried, 2: interrupted).
OUTCOMES = {0: "survived", 1: "caught", 3: "caught", 5: "not covered", 33: "not covered"}
OUTCOMES |= dict.fromkeys((24, 36, 152, 255, -24), "caught")


def functions(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the functions that mutmut changed, each with its hash and the exit codes by mutant."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*.py.meta")):
        module = ".".join(path.relative_to(folder).with_suffix("").with_suffix("").parts)
        stored = read_json(path)
        codes: defaultdict[str, dict[str, int | None]] = defaultdict(dict)
        for mutant, code in stored["exit_code_by_key"].items():
            name, _, number = mutant.removeprefix(f"{module}.").rpartition("__mutmut_")
            codes[name][number] = code
        hashes = stored["hash_by_function_name"]
        found |= {f"{module}.{name}": {"code": hashes[name], "codes": own} for name, own in codes.items()}
    if not found:
        raise DataError(f"{folder} has no mutants: run `mutmut run` first.")
    return found


def checked(codes: Mapping[str, int | None]) -> dict[str, Any] | None:
    """Return the number of mutants by outcome and the survivors; None if a mutant was not tried."""
    outcomes = {
        number: "open" if code is None else OUTCOMES.get(code, "open") for number, code in codes.items()
    }
    if "open" in outcomes.values():
        return None
    survivors = [number for number, outcome in outcomes.items() if outcome == "survived"]
    return {**Counter(outcomes.values()), "survivors": " ".join(survivors)}


def merged(known: Mapping[str, Any], found: Mapping[str, Any], commit: str) -> dict[str, Any]:
    """Return the results of all current functions after a run on `commit`."""
    out = {}
    for name, function in found.items():
        result = checked(function["codes"])
        if result is not None:
            out[name] = {"code": function["code"], "commit": commit, **result}
        elif name in known and known[name]["code"] == function["code"]:
            out[name] = known[name]
    return out


def main() -> None:
    """Merge, write and print."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=Path, default=Path("mutants"), help="folder that mutmut wrote")
    args = parser.parse_args()
    found = functions(args.mutants)
    commit = code_state(args.mutants.resolve().parent)["commit"] or "unknown"
    known = merged(read_json(KEPT) if KEPT.exists() else {}, found, commit[:12])
    write_json(KEPT, known)
    total: Counter[str] = Counter()
    for result in known.values():
        total.update({outcome: result.get(outcome, 0) for outcome in ("caught", "survived", "not covered")})
    every = sum(len(function["codes"]) for function in found.values())
    print(f"{total.total()} of {every} mutants checked: {dict(total)}")
    print(f"caught, of those that a test runs: {total['caught'] / (total['caught'] + total['survived']):.1%}")
    for name in sorted(set(found) - set(known)):
        print(f"'{name}__mutmut_*'")


if __name__ == "__main__":
    main()
