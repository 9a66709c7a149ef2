"""Rows beyond what the language model takes are cut at the default settings, however a run is asked."""

from pathlib import Path

import pytest
from app_cases import Place, questions, save_backbone, word_tokenizer, write_rows
from transformers import GPT2Config, GPT2LMHeadModel

import bara_pyro as bp
from bara_pyro.runs.system import System

CONTEXT = 64  # positions of the language models here; task.max_length is 300 by default
LONG = "the fox is red no yes the cow is grey no yes "
ASKED = [{"id": "long", "context": LONG * 40, "question": "is the fox red ?"}]


def learnt_positions(folder: Path) -> Path:
    """A GPT-2, which has nothing to look up beyond its positions."""
    tokenizer = word_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=2, eos_token_id=1
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[save_backbone, learnt_positions], ids=["rotary", "learnt"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> System:
    folder = tmp_path_factory.mktemp("context")
    rows = [{**row, "context": LONG * (20 if i == 30 else 1)} for i, row in enumerate(questions())]
    place = Place(request.param(folder / "backbone"), write_rows(folder / "rows.jsonl", rows))
    return bp.train(task=place.rows, model=place.backbone, out=folder / "run", steps=2, calibrated=False)


def test_training_and_evaluation_cut_to_what_the_model_takes(run: System) -> None:
    lengths = [length for name in ("train", "test") for length in run.split(name).lengths]
    assert max(lengths) == CONTEXT
    assert [note for note in run.task.notes if f"cut to {CONTEXT} tokens" in note]
    assert run.config.task.max_length == 300  # what is stored is what was asked for
    bp.evaluate(run)


def test_a_long_row_is_answered_as_its_beginning_is(run: System) -> None:
    room = CONTEXT - len(run.backbone.tokenizer("\nis the fox red ?\nAnswer:")["input_ids"])
    cut = [{**ASKED[0], "context": " ".join(ASKED[0]["context"].split()[:room])}]
    [answer] = bp.predict(run, ASKED, samples=3).rows
    [expected] = bp.predict(run, cut, samples=3).rows
    assert answer == expected
    assert any(f"cut to {CONTEXT} tokens" in note for note in bp.predict(run, ASKED, samples=3).notes)


def test_a_question_beyond_the_model_says_what_the_model_takes(run: System) -> None:
    with pytest.raises(bp.BaraError, match=rf"the language model takes {CONTEXT}"):
        bp.predict(run, [{"id": "a", "context": "", "question": LONG * 40}])


def test_texts_are_scored_within_the_context(run: System, tmp_path: Path) -> None:
    names = {"yes": "yes the fox is red", "no": "no"}
    rows = [{**row, "answer": names[row["answer"]], "context": LONG * 20} for row in questions()]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    scored = bp.train(
        task=file, model=run.backbone.name, out=tmp_path / "run", steps=2, labels="texts", calibrated=False
    )
    split = scored.split("train")
    longest = max(len(text) for text in split.texts[0])
    assert {len(tokens) + longest - 1 for tokens in split.token_ids} == {CONTEXT}
    bp.predict(scored, ASKED, samples=2)


def test_replies_are_learnt_and_written_within_the_context(run: System, tmp_path: Path) -> None:
    rows = [{"prompt": f"is the {row['id'][:3]}", "completion": LONG * 20} for row in questions()[::4]]
    told = bp.train(
        task=bp.load_replies(str(write_rows(tmp_path / "rows.jsonl", rows))),
        model=run.backbone.name,
        out=tmp_path / "run",
        steps=2,
        likelihood="completion",
    )
    assert max(told.encoded("train").lengths) == CONTEXT - 1  # the last token of a reply is not read
    [reply] = bp.generate(told, [" ".join(LONG.split()[:10] * 6)])  # behind which 4 tokens have room
    assert reply["tokens"] <= CONTEXT - 60
