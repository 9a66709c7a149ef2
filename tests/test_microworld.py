"""The microworld: reproducible, disjoint, exactly true, and hard enough."""

import hashlib
import math
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bara_pyro.data import load_task as load_by_name
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.lm.loading import load_backbone
from bara_pyro.microworld import TASKS, World, backbone_path, micro_task
from bara_pyro.microworld.build import build_backbone, build_tokenizer
from bara_pyro.microworld.chat import claims, draw_prompts, score_reply, write_reply
from bara_pyro.microworld.code import MAX_STEPS, draw_problem, program_value, solves
from bara_pyro.microworld.questions import WHIM, Question
from bara_pyro.microworld.tasks import _settled_answer
from bara_pyro.microworld.text import corpus
from bara_pyro.microworld.words import HOMES, KINDS, RELATIONS, SEASONS
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import truth_scores, untrained_scores
from bara_pyro.runs.rows import load_data, load_rows
from bara_pyro.runs.system import assemble, build_system
from docs.tools.world_card import MAX_WAY, CardRow

SHIFTED = ("micro-near", "micro-far", "micro-changed")
# Train and test as published; validation is ours.
SIZES = {
    "micro-wgs": (640, 500, 1267),
    "micro-wgm": (2558, 500, 1267),
    "micro-arce": (2251, 400, 570),
    "micro-arcc": (1119, 400, 299),
    "micro-obqa": (4957, 500, 500),
    "micro-boolq": (2490, 500, 3270),
}
DIGEST = """
import hashlib
from bara_pyro.microworld import TASKS, micro_task
print(hashlib.sha256(repr([micro_task(name) for name in TASKS]).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def tasks():
    return {name: micro_task(name) for name in TASKS}


@pytest.fixture(scope="module")
def backbone():
    path = backbone_path()
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(
        path
    )


def rows_of(task):
    return [*task.train, *task.validation, *task.test]


@pytest.mark.slow
def test_same_seed_same_tasks_whatever_the_hash_seed(tasks):
    there = subprocess.run(
        [sys.executable, "-c", DIGEST],
        env={"PYTHONHASHSEED": "12345"},  # here it is drawn when Python starts
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert there.strip() == hashlib.sha256(repr([*tasks.values()]).encode()).hexdigest()
    assert micro_task("micro-wgs", 3) == micro_task("micro-wgs", 3)
    assert micro_task("micro-wgs", 3) != micro_task("micro-wgs", 4)


def test_sizes_are_those_of_the_paper(tasks):
    for name, sizes in SIZES.items():
        assert tuple(map(len, (tasks[name].train, tasks[name].validation, tasks[name].test))) == sizes
    for name in SHIFTED:
        assert (len(tasks[name].train), len(tasks[name].test)) == (0, 1000)
        assert tasks[name].labels == tasks["micro-obqa"].labels


def asked(row):
    """What a row asks, without its options and their order, read off the text by another way than the key."""
    return " ".join(sorted(row.context.split(" . "))) + " | " + row.question.split(" ? ")[0]


def test_no_question_is_asked_twice(tasks):
    for task in tasks.values():
        rows = rows_of(task)
        assert len({asked(row) for row in rows}) == len(rows)
        assert len({row.id for row in rows}) == len(rows)


def test_truth_is_a_distribution_and_labels_are_drawn_from_it(tasks):
    for task in tasks.values():
        rows = rows_of(task)
        assert all(math.isclose(sum(row.truth), 1.0) and min(row.truth) >= 0 for row in rows)
        assert all(len(row.truth) == len(task.labels) and row.truth[row.label] > 0 for row in rows)
        rows = [*task.validation, *task.test]  # those of train depend on each other: see below
        for label in range(len(task.labels)):
            observed = sum(row.label == label for row in rows)
            expected = sum(row.truth[label] for row in rows)
            error = math.sqrt(sum(row.truth[label] * (1 - row.truth[label]) for row in rows))
            assert abs(observed - expected) < 4.5 * error
        likely = sum(max(row.truth) for row in rows)
        right = sum(
            row.truth[row.label] == max(row.truth) for row in rows if sorted(row.truth)[-2] < max(row.truth)
        )
        ties = sum(max(row.truth) for row in rows if sorted(row.truth)[-2] == max(row.truth))
        assert abs(right - likely + ties) < 4.5 * math.sqrt(
            sum(max(r.truth) * (1 - max(r.truth)) for r in rows)
        )


def test_train_and_test_are_alike(tasks):
    for name in SIZES:
        train, test = tasks[name].train, tasks[name].test
        for label in range(len(tasks[name].labels)):
            shares = [sum(row.truth[label] for row in rows) / len(rows) for rows in (train, test)]
            assert abs(shares[0] - shares[1]) < 4.5 * math.sqrt(0.25 / len(train) + 0.25 / len(test))


def who_answers(row):
    """The resident whom a question is about, read off its text; None for a guest."""
    words = row.question.split()
    name = words[next(i for i, word in enumerate(words) if word in {r.verb for r in RELATIONS}) - 1]
    return None if name == "guest" else name


def test_rows_know_the_resident_that_they_are_about(tasks):
    """As the text says it: whose verb it is, or the host of a passage. All tasks share the 37 of test."""
    asked = {name: {row.cluster for row in task.test} for name, task in tasks.items()}
    main = set().union(*(asked[name] for name in SIZES))
    assert main == {who.name for who in World().split("test")}
    assert len(main) == 37
    assert asked["micro-near"] == {who.name for who in World().newcomers}
    verbs = {relation.verb for relation in RELATIONS}
    for name, task in tasks.items():
        for row in task.test[:200]:
            if name == "micro-boolq":
                assert f"{row.cluster} is the host" in row.context
            else:
                words = row.question.split()
                assert row.cluster == next(a for a, b in pairwise(words) if b in verbs)


def test_splits_ask_about_different_residents(tasks):
    everywhere = {split: set() for split in ("train", "validation", "test")}
    for name in SIZES:
        for split, names in everywhere.items():
            names |= {who_answers(row) for row in getattr(tasks[name], split)} - {None}
    train, validation, test = everywhere.values()
    assert (len(train), len(validation), len(test)) == (155, 28, 37)
    assert not train & validation
    assert not (train | validation) & test


def contradictions(rows):
    """How often somebody, before the same odds, takes another thing than before; and of how many chances."""
    taken, contrary, chances = {}, 0, 0
    for row in rows:
        options = [word.split(":")[1] for word in row.question.split() if word[1:2] == ":"]
        odds = {(o, round(p, 6)) for o, p in zip(options, row.truth, strict=True) if p > 0}
        if len(odds) < 2:
            continue
        key = who_answers(row), frozenset(odds)
        chances += key in taken
        contrary += taken.setdefault(key, options[row.label]) != options[row.label]
    return contrary, chances


@pytest.mark.parametrize("name", ["micro-wgm", "micro-arce", "micro-obqa"])
def test_residents_of_train_do_not_contradict_themselves(tasks, name):
    contrary, chances = contradictions(tasks[name].train)
    assert chances > 100
    assert contrary == 0
    contrary, chances = contradictions(tasks[name].test)  # where each row is answered anew
    assert contrary > 0.05 * chances > 0


@pytest.mark.parametrize("truth", [(0.3, 0.7), (0.05, 0.6, 0.35, 0.0)])
def test_settled_answers_have_the_true_probabilities_over_residents(truth):
    offers = ("rice", "corn", "beans", "nuts")[: len(truth)]
    n = 20_000
    count = Counter(
        _settled_answer(Question("", truth, (), who=f"w{i}", offers=offers), seed=5) for i in range(n)
    )
    for label, p in enumerate(truth):
        assert abs(count[label] / n - p) <= 4.5 * math.sqrt(p * (1 - p) / n)


def test_a_settled_answer_depends_on_the_resident_and_the_thing_alone():
    """Whatever else is offered, in whatever order: an option that is taken among many is taken among few."""
    rng = random.Random(0)
    things = RELATIONS[0].values
    for i in range(200):
        weights = dict(zip(things, [rng.random() for _ in things], strict=True))
        many = rng.sample(things, 4)
        few = rng.sample(many, 2)
        taken = [offer[_settled(f"w{i}", weights, offer)] for offer in (many, few, few[::-1])]
        assert taken[1] == taken[2]
        assert taken[0] not in few or taken[1] == taken[0]


def _settled(who, weights, offer):
    total = sum(weights[thing] for thing in offer)
    truth = tuple(weights[thing] / total for thing in offer)
    return _settled_answer(Question("", truth, (), who=who, offers=tuple(offer)), seed=0)


def today(world, words, attributes):
    """Read a question word by word: `p(value)` of every value of its relation, today."""
    relation = next(r for r in RELATIONS if r.verb in words)
    season = next(i for i, season in enumerate(SEASONS) if season in words)
    custom = world.custom(relation, attributes[relation.governed_by], season)
    return dict(zip(relation.values, custom.today, strict=True))


def attributes_of(world, name):
    who = next(r for r in world.residents + world.newcomers if r.name == name)
    return {"kind": who.kind, "home": who.home, "clan": who.clan}


def test_changed_customs_show_in_no_text(tasks):
    """A custom has changed for all who share it or for none, about half have, and the words are the same."""
    world, changed = World(), {}
    for row in tasks["micro-changed"].test:
        words = row.question.split()
        verb = next(i for i, word in enumerate(words) if word in {r.verb for r in RELATIONS})
        relation = next(r for r in RELATIONS if r.verb == words[verb])
        attributes = attributes_of(world, words[verb - 1])
        likely = today(world, words, attributes)
        before = [likely[word.split(":")[1]] for word in words if word[1:2] == ":"]
        if row.truth != pytest.approx(before):
            assert row.truth == pytest.approx([before[-1], *before[:-1]])
        season = next(s for s in SEASONS if s in words) if relation.seasonal else ""
        custom = relation.name, attributes[relation.governed_by], season
        assert changed.setdefault(custom, row.truth != pytest.approx(before)) is (
            row.truth != pytest.approx(before)
        )
    share = sum(changed.values()) / len(changed)
    assert abs(share - 0.5) < 3 * math.sqrt(0.25 / len(changed))
    told = {word for row in tasks["micro-obqa"].train for word in row.question.split()}
    names = {resident.name for resident in world.residents}
    assert {word for row in tasks["micro-changed"].test for word in row.question.split()} <= told | names


@pytest.mark.parametrize("name", [name for name in TASKS if name != "micro-changed"])
def test_truth_by_brute_force_from_the_text(tasks, name):
    world = World()
    for row in rows_of(tasks[name])[:400]:
        words = row.question.split()
        if name == "micro-boolq":
            passage = row.context.split()
            attributes = {
                "kind": next(i for i, kind in enumerate(KINDS) if kind in passage),
                "home": next(i for i, home in enumerate(HOMES) if home in passage),
            }
            p = today(world, words, attributes)[words[words.index("?") - 1]]
            expected = [p, 1 - p]
        else:
            verb = next(i for i, word in enumerate(words) if word in {r.verb for r in RELATIONS})
            likely = today(world, words, attributes_of(world, words[verb - 1]))
            options = [word.split(":")[1] for word in words if word[1:2] == ":"]
            floor = WHIM if len(options) == 2 else 0.0
            weights = [likely[value] + floor for value in options]
            expected = [weight / sum(weights) for weight in weights]
        assert row.truth == pytest.approx(expected)


def test_prompts_have_no_unknown_word_and_labels_are_single_tokens(tasks, backbone):
    _, tokenizer = backbone
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    for task in tasks.values():
        texts = [f"{row.context} {row.question}" for row in rows_of(task)]
        assert all(text.endswith("Answer :") for text in texts)
        for text, ids in zip(texts, tokenizer(texts)["input_ids"], strict=True):
            assert tokenizer.unk_token_id not in ids
            assert len(ids) == len(text.split()) <= 96
        for label in task.labels:
            (only,) = tokenizer(label)["input_ids"]
            assert only != tokenizer.unk_token_id
    lines = list(corpus(World(), 0, 3000))
    assert not any(tokenizer.unk_token_id in ids for ids in tokenizer(lines)["input_ids"])


def test_tokenizer_pads_on_the_left_and_adds_nothing(backbone):
    _, tokenizer = backbone
    ids = tokenizer(["A B", "A"], padding=True)["input_ids"]
    a, b = tokenizer.convert_tokens_to_ids(["A", "B"])
    assert ids == [[a, b], [tokenizer.pad_token_id, a]]


def test_backbone_is_small_and_partly_right():
    assert sum(file.stat().st_size for file in backbone_path().iterdir()) <= 6e6
    config = load_config(overrides={"method": "lora", "task.name": "micro-obqa"})
    system = assemble(config, load_backbone("microworld"), load_data(config), num_data=1)
    row = CardRow("micro-obqa", untrained_scores(system), truth_scores(system), constant=28.0)
    error = 100 * math.sqrt(0.25 / 500)
    assert row.zero_shot["acc"] > row.chance + 2 * error
    assert row.way <= MAX_WAY


def test_build_writes_a_folder_that_the_ordinary_loader_reads_and_repeats_itself(tmp_path):
    seen = []
    report = build_backbone(tmp_path / "a", seed=1, steps=2, progress=lambda *what: seen.append(what))
    build_backbone(tmp_path / "b", seed=1, steps=2)
    assert [step for step, _, _ in seen] == [1, 2]
    assert report.steps == 2
    assert 0.5e6 < report.parameters < 3e6
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert one == two
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "a").config.model_type == "llama"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert tokenizer.tokenize("who A:rice 15 Answer :") == ["<unk>", "A:rice", "15", "Answer", ":"]


def test_another_world_has_other_customs_rows_and_residents(tmp_path):
    """Of the texts: the same residents by name, who are and do something else."""
    here, there = World(), World(3)
    assert {who.name for who in here.residents} == {who.name for who in there.residents}
    same = [a == b for a, b in zip(here.residents, there.residents, strict=True)]
    assert sum(same) < 0.05 * len(same)  # one in 8 * 8 * 6 or so by chance
    own, other = micro_task("micro-arcc", 1), micro_task("micro-arcc", 1, 3)
    assert [len(rows) for rows in (own.train, own.validation, own.test)] == [
        len(rows) for rows in (other.train, other.validation, other.test)
    ]
    assert not {row.id for row in rows_of(own)} & {row.id for row in rows_of(other)}
    assert not {row.cluster for row in rows_of(own)} & {row.cluster for row in rows_of(other)}
    truths = {row.question: row.truth for row in rows_of(own)}
    asked_twice = [row for row in rows_of(other) if row.question in truths]
    assert sum(row.truth == truths[row.question] for row in asked_twice) <= 0.5 * len(asked_twice)
    assert "of world 3" in other.notes[0]
    # Whether labels follow the truth of that world: the most likely answer is drawn as often as it should be.
    hits = [row.truth[row.label] for row in rows_of(other)]
    assert np.mean(hits) == pytest.approx(
        np.mean([np.square(row.truth).sum() for row in rows_of(other)]), abs=0.03
    )


def test_a_backbone_knows_its_world(tmp_path):
    build_backbone(tmp_path / "0", seed=1, steps=1)
    build_backbone(tmp_path / "3", seed=1, steps=1, world=3)
    assert not hasattr(AutoModelForCausalLM.from_pretrained(tmp_path / "0").config, "microworld_seed")
    assert load_backbone(str(tmp_path / "3")).world == 3
    assert load_backbone("microworld").world == 0
    assert load_backbone(str(tmp_path / "0")).world is None
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in "03")
    assert one != two
    settings = {"backbone.name": str(tmp_path / "3"), "train.steps": 1}
    with pytest.raises(
        ConfigError, match=r"knows world 3, but 'micro-wgs' asks about world 0: set task.world=3"
    ):
        build_system(load_config(overrides=settings))
    system = build_system(load_config(overrides=settings | {"task.world": 3}))
    assert system.task.train == micro_task("micro-wgs", 0, 3).train
    with pytest.raises(ConfigError, match="microworld knows world 0"):
        build_system(load_config(overrides={"task.world": 3}))


def test_worlds_are_of_the_microworld_alone():
    with pytest.raises(
        ConfigError, match="world=2 only applies to tasks of the microworld, and 'boolq' is not one"
    ):
        load_by_name("boolq", world=2)
    with pytest.raises(ConfigError, match="and 'micro-chat' is not one"):
        load_rows(
            load_config(
                overrides={"task.name": "micro-chat", "task.likelihood": "completion", "task.world": 2}
            )
        )


def test_build_of_another_size(tmp_path):
    report = build_backbone(tmp_path, seed=1, steps=1, hidden_size=64, layers=2)
    config = AutoModelForCausalLM.from_pretrained(tmp_path).config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 2, 2)
    assert report.parameters < 0.5e6
    with pytest.raises(ConfigError, match="hidden_size=100"):
        build_backbone(tmp_path, steps=1, hidden_size=100)


def test_chat_score_is_exact():
    world, rng = World(), random.Random(0)
    prompts = draw_prompts(world, 50)
    assert len({prompt.text for prompt in prompts}) == 50
    for prompt in prompts:
        assert score_reply(world, prompt, write_reply(world, rng, prompt, "today")) > 0
        right = [claim for claim, score in claims(world, prompt.who, prompt.season).items() if score == 1.0]
        assert score_reply(world, prompt, " ".join(f"{claim} ." for claim in right[:3])) == 1.0
        assert score_reply(world, prompt, f"{right[0]} . {right[0]} . {right[0]} .") == pytest.approx(1 / 3)
        assert score_reply(world, prompt, "eats clay . who . ") == 0.0
        assert score_reply(world, prompt, "") == 0.0
    with pytest.raises(DataError, match="choose 0 to"):
        draw_prompts(world, 10**6)


def test_programs_run():
    assert program_value("x", 7) == 7
    assert program_value("add x 15", 7) == 2
    assert program_value("sub x 9", 7) == 18
    assert program_value("max min x 3 mul 2 x", 4) == 8
    problem, program = draw_problem(random.Random(0))
    assert solves(problem, program)
    assert not solves(problem, "add x")
    assert len(problem.shown) + len(problem.hidden) == 20
    assert draw_problem(random.Random(0)) == (problem, program)


@pytest.mark.parametrize(
    "program",
    ["", "add x", "x x", "add x 20", "add x -1", "__import__('os')", "pow x 2", "add " * 10_000, "ADD x 1"],
)
def test_malformed_programs_are_refused(program):
    with pytest.raises(DataError):
        program_value(program, 1)


def test_long_programs_and_bad_inputs_are_refused():
    half = MAX_STEPS // 2
    assert program_value("add " * half + "x " * (half + 1), 0) == 0
    with pytest.raises(DataError, match="at most"):
        program_value("add " * (half + 1) + "x " * (half + 2), 0)
    with pytest.raises(DataError, match="out of range"):
        program_value("x", 20)
