"""What mutation runs found is kept as long as the code that was changed is the same."""

from pathlib import Path

import pytest

from bara_pyro.atomic import write_json
from bara_pyro.errors import DataError
from benchmarks.mutants import functions, merged


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
