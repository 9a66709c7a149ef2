"""What mutation runs found is kept as long as the code that was changed is the same."""

import json
import os
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from bara_pyro.atomic import write_json
from bara_pyro.errors import DataError
from benchmarks.mutants import functions, merged
from benchmarks.mutate import fastest


def write(folder: Path, codes: dict[str, int | None], **hashes: str) -> None:
    mutants = {f"core.a.{name}": code for name, code in codes.items()}
    (folder / "core").mkdir(exist_ok=True)
    write_json(folder / "core" / "a.py.meta", {"exit_code_by_key": mutants, "hash_by_function_name": hashes})


def test_whole_functions_are_kept_until_their_code_changes(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"x_f__mutmut_1": 1, "x_f__mutmut_2": 0, "x_f__mutmut_3": 33, "x_g__mutmut_1": None},
        x_f="p",
        x_g="q",
    )
    first = merged({}, functions(tmp_path), "one")
    outcomes = {"caught": 1, "survived": 1, "not covered": 1, "survivors": "2"}
    assert first == {"core.a.x_f": {"code": "p", "commit": "one", **outcomes}}
    write(tmp_path, {"x_f__mutmut_1": None, "x_g__mutmut_1": 36}, x_f="p", x_g="q")
    second = merged(first, functions(tmp_path), "two")
    assert second["core.a.x_f"] == first["core.a.x_f"]
    assert second["core.a.x_g"] == {"code": "q", "commit": "two", "caught": 1, "survivors": ""}
    write(tmp_path, {"x_f__mutmut_1": None, "x_g__mutmut_1": 0}, x_f="other", x_g="q")
    third = merged(second, functions(tmp_path), "three")
    assert list(third) == ["core.a.x_g"]
    assert third["core.a.x_g"]["survived"] == 1


def test_a_folder_without_mutants_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no mutants"):
        functions(tmp_path)


CODE = """import os

def mutated(value):
    changed = {"a.x_half__mutmut_1": value / 3, "a.x_half__mutmut_2": value * 0.5}
    return changed.get(os.environ["MUTANT_UNDER_TEST"], value / 2)
"""
TESTS = """import a

def test_half():
    assert a.mutated(3) == 1.5
"""


@pytest.mark.parametrize("sound", [True, False])
def test_each_mutant_is_tried_in_a_fork(tmp_path: Path, sound: bool) -> None:
    """One is caught, one survives, one has a result already, and one belongs to a function without tests.

    Tests that fail without a mutant judge none.
    """
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "test_a.py").write_text(TESTS if sound else TESTS.replace("1.5", "2.5"))
    codes = {f"a.x_half__mutmut_{number}": code for number, code in ((1, None), (2, None), (3, 1))}
    codes["a.x_f__mutmut_1"] = None
    write_json(tmp_path / "a.py.meta", {"exit_code_by_key": codes, "hash_by_function_name": {}})
    tests = {"a.x_half": ["test_a.py::test_half"]}
    stats = {"duration_by_test": {}, "tests_by_mangled_function_name": tests}
    write_json(tmp_path / "mutmut-stats.json", stats)
    command = [sys.executable, str(Path(__file__).parents[1] / "benchmarks" / "mutate.py")]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    found = json.loads((tmp_path / "a.py.meta").read_text())["exit_code_by_key"]
    if sound:
        assert list(found.values()) == [1, 0, 1, 33]
        assert done.stdout.count("a.x_half") == 2
    else:
        assert list(found.values()) == list(codes.values())
        assert "fail without a mutant" in done.stderr
    assert (done.returncode == 0) is sound


def test_the_fastest_tests_of_a_mutant() -> None:
    seconds = {"slow": 5.0, "fast": 1.0, "middle": 2.0}
    assert fastest([*seconds], seconds, 4.0) == ["fast", "middle"]
    assert fastest([*seconds], seconds, inf) == ["fast", "middle", "slow"]
