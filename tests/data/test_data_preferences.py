"""Preference pairs: TRL's formats, the division by prompt, what is refused."""

import json
from pathlib import Path

import pytest

from bara_pyro.data.preferences import PreferencePair, load_pairs, load_preferences
from bara_pyro.errors import ConfigError, DataError

HI = {"role": "user", "content": "hi you"}
BE = {"role": "system", "content": "be kind"}
YES, NO = ({"role": "assistant", "content": text} for text in ("yes, me", "no"))


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(count: int, replies: int = 2) -> list[dict]:
    return [
        {"prompt": f"p{i}", "chosen": f"good {k}", "rejected": f"bad {k}"}
        for i in range(count)
        for k in range(replies)
    ]


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": "hi you", "chosen": "yes, me", "rejected": "no"}, "hi you"),
        ({"instruction": "hi", "input": "you", "chosen": "yes, me", "rejected": "no"}, "hi\nyou"),
        ({"prompt": [BE, HI], "chosen": [YES], "rejected": [NO]}, (BE, HI)),
        ({"prompt": [HI], "chosen": "yes, me", "rejected": "no"}, (HI,)),
        ({"prompt": "hi you", "chosen": [HI, YES], "rejected": [HI, NO]}, (HI,)),
        ({"chosen": [BE, HI, YES], "rejected": [BE, HI, NO]}, (BE, HI)),
        (
            {
                "prompt": "hi you",
                "messages": [HI, NO],
                "completion": "else",
                "chosen": "yes, me",
                "rejected": "no",
            },
            "hi you",
        ),
    ],
)
def test_formats(row: dict, prompt: object) -> None:
    assert load_pairs([row]) == [PreferencePair(prompt, "yes, me", "no", "row-1")]
    prefer, other = load_pairs([{**row, "id": "mine"}])[0].sides()
    assert (prefer.prompt, prefer.reply, prefer.id) == (prompt, "yes, me", "mine")
    assert (other.prompt, other.reply, other.id) == (prompt, "no", "mine")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a", "chosen": "b"}, "no 'rejected' in row 1 of"),
        ({"prompt": "a", "rejected": "b"}, "no 'chosen' in row 1 of"),
        ({"chosen": "a", "rejected": "b"}, "no prompt in row 1 of"),
        ({"prompt": "a", "chosen": "b", "rejected": 5}, r"\('rejected' as its reply\) is the number 5"),
        ({"chosen": [HI, YES], "rejected": [BE, NO]}, "row 1 of .* answer different prompts"),
        ({"chosen": [HI, YES], "rejected": [HI]}, r"\('rejected' as its reply\) is the user's"),
        ({"prompt": 5, "chosen": "a", "rejected": "b"}, "'prompt' of row 1 .* is the number 5"),
    ],
)
def test_what_is_no_pair(row: dict, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_pairs([row])


def test_a_file_is_divided_by_prompt(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", texts(20))
    task = load_preferences(str(file))
    assert (task.name, len(task.train), len(task.test)) == ("mine", 32, 8)
    assert not {pair.prompt for pair in task.train} & {pair.prompt for pair in task.test}
    assert task.notes == ("4 of 20 prompts held out for testing, by a hash of their text",)
    again = load_preferences(str(write(tmp_path / "mine.jsonl", texts(20)[::-1])))
    assert {pair.prompt for pair in again.test} == {pair.prompt for pair in task.test}


def test_a_test_file_repeats_and_rows(tmp_path: Path) -> None:
    same = {"prompt": "p", "chosen": "x", "rejected": "x"}
    train = write(tmp_path / "train.jsonl", [same, *texts(5)])
    test = write(tmp_path / "test.jsonl", [*texts(2), same])
    task = load_preferences(str(train), test_file=test, rows=4)
    assert [len(task.train), len(task.test)] == [4, 4]
    assert task.notes[1:] == (
        "2 pairs with two equal replies left out",
        "2 prompts of test pairs are also in train",
    )


def test_what_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", texts(2))
    same = write(
        tmp_path / "same.jsonl", [{"prompt": f"p{i}", "chosen": "x", "rejected": "x"} for i in range(9)]
    )
    cases = [
        (DataError, "Unknown task of preference pairs 'mine'", ("mine",), {}),
        (DataError, "There is no file", (str(tmp_path / "absent.jsonl"),), {}),
        (DataError, r"too few prompts \(2\) to hold some out .* at least 3", (str(file),), {}),
        (DataError, "no train pair whose replies differ", (str(same),), {}),
        (ConfigError, "test_fraction is 1", (str(file),), {"test_fraction": 1}),
        (ConfigError, "rows is 0", (str(file),), {"rows": 0}),
        (DataError, "share 4 ids", (str(file),), {"test_file": "own"}),
        (DataError, "are also training rows", (str(file),), {"test_file": file}),
    ]
    rows = [{**row, "id": str(i)} for i, row in enumerate(texts(2))]
    for error, said, given, settings in cases:
        if settings.get("test_file") == "own":
            given = (str(write(tmp_path / "ids.jsonl", rows)),)
            settings = {"test_file": write(tmp_path / "again.jsonl", rows)}
        with pytest.raises(error, match=said):
            load_preferences(*given, **settings)


def test_real_pairs(rows_dir: Path) -> None:
    if not (rows_dir / "ultrafeedback_binarized").is_dir():
        pytest.skip(f"there are no pairs in {rows_dir}")
    task = load_preferences("ultrafeedback", rows_dir)
    assert (len(task.train), len(task.test)) == (399, 59)
    assert all(isinstance(pair.prompt, str) for pair in (*task.train, *task.test))
    assert "2 pairs with two equal replies left out" in task.notes
    assert len(load_preferences("ultrafeedback", rows_dir, rows=10).train) == 10
