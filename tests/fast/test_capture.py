"""A captured step has the bits of the eager one: here as a graph of ATen calls, replayed on other rows."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from app_cases import save_backbone
from capture_cases import BATCHES, STEPS, Again, Traced, of_method, questions, replies
from core_cases import bara_pair, lora_pair, make_batch, trainer
from pyro import poutine
from torch import Tensor, distributed
from torch._subclasses.fake_tensor import FakeTensorMode

import bara_pyro as bp
from bara_pyro.core.likelihood import Head
from bara_pyro.core.optimizers import adamw
from bara_pyro.core.svi import SVI
from bara_pyro.core.terms import ElboTerms
from bara_pyro.data.types import Batch
from bara_pyro.errors import DataError, TrainingError
from bara_pyro.fast.capture import MOST, Outputs, Run, Unfit, captured, eager, widened
from bara_pyro.fast.prefix import Prefix
from bara_pyro.fast.replay import Replayed, replaying
from bara_pyro.lm.loading import load_backbone
from bara_pyro.methods import METHODS
from bara_pyro.processes import Ranks

EAGER = ("ensemble", "ensemble_temperature", "ivon")  # several members or draws a step
TWO_STEPS = ("blob", "clora", "scalabl")  # as published, with a second step on the KL
ONE_TOKEN = ("laplace", "vbll", "polar_vbll")
UNFIT = ("vbll", "polar_vbll")  # TorchScript refuses a call of the backward pass
REPLAYED = [(name, bp.AnswerLikelihood) for name in METHODS if name not in EAGER]
REPLAYED += [(name, bp.CompletionLikelihood) for name, _ in REPLAYED if name not in ONE_TOKEN]
REPLAYED += [("bara-gate", bp.TextLikelihood)]


def make(name: str, **options: object) -> SVI:
    torch.manual_seed(5)
    if name == "lora":
        return trainer(lora_pair(**options))
    return trainer(bara_pair(form=name, scale=0.3, beta_theta=0.01, **options))


def trained(svi: SVI, batches: Callable[[int], Batch], steps: int = STEPS) -> list[list[Tensor]]:
    """Return what each step gives: parts of the bound, norm, gradients, and parameters after it."""
    torch.manual_seed(9)
    found = []
    for step in range(steps):
        svi.step(batches(step))
        numbers = torch.tensor([*svi.last.values()], dtype=torch.float64)
        found.append(
            [
                numbers,
                *(p.grad.clone() for p in svi.parameters),
                *(p.detach().clone() for p in svi.parameters),
            ]
        )
    return found


def same(first: list[list[Tensor]], second: list[list[Tensor]]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(chain(*first), chain(*second), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "likelihood"), REPLAYED)
def test_replays_have_the_bits_of_eager_steps(name: str, likelihood: type) -> None:
    batches = BATCHES[likelihood]
    plain = trained(eager(of_method(name, likelihood)), batches)
    record = Traced()
    svi = captured(of_method(name, likelihood), record)
    assert same(plain, trained(svi, batches))
    assert not same(plain[:1], plain[1:2])
    assert len(svi.replayed.recordings) == 1
    assert not svi.replayed.eager
    assert not record.waits


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in EAGER), *((name, {"recipe": "reproduction"}) for name in TWO_STEPS)],
)
def test_methods_with_a_training_scheme_of_their_own_run_eagerly(name: str, settings: dict) -> None:
    plain, svi = eager(of_method(name, **settings)), captured(of_method(name, **settings), Again())
    reason = f"{type(svi).__name__} computes gradients differently"
    assert svi.replayed.misfit(questions(0)) == reason
    with pytest.warns(UserWarning, match=reason) as said:
        assert same(trained(plain, questions, 2), trained(svi, questions, 2))
    assert len(said) == 1
    assert not svi.replayed.recordings


def test_a_step_is_recorded_for_each_shape_and_setting() -> None:
    batches = {0: questions, 1: questions, 2: replace_width, 3: questions, 4: questions}
    svi, plain = captured(make("gate"), Again()), eager(make("gate"))

    def train(svi: SVI) -> list[list[Tensor]]:
        found = []
        for step, batch in batches.items():
            if step == 4:
                svi.model.beta_theta = 0.5
            found += trained(svi, lambda _, batch=batch, step=step: batch(step), 1)
        return found

    assert same(train(plain), train(svi))
    assert len(svi.replayed.recordings) == 3


def replace_width(step: int) -> Batch:
    return make_batch(pad=2)


def test_gradients_are_clipped() -> None:
    svi, plain = (trainer(bara_pair(seed=5, scale=0.3), clip_norm=0.01) for _ in range(2))
    assert same(trained(eager(plain), questions, 3), trained(captured(svi, Again()), questions, 3))


def test_a_loss_that_is_not_finite_stops_a_replay_before_the_step() -> None:
    svi = captured(make("additive"), Again())
    svi.step(questions(0))
    with torch.no_grad():
        svi.parameters[0].view(-1)[0] = math.nan
    before = [p.detach().clone().nan_to_num(7.0) for p in svi.parameters]
    with pytest.raises(TrainingError, match="The loss is nan"):
        svi.step(questions(1))
    after = [p.detach().nan_to_num(7.0) for p in svi.parameters]
    assert all(map(torch.equal, before, after))


def hooked(svi: SVI) -> Callable[[], None]:
    return svi.model.backbone.lm.model.layers[0].register_forward_hook(lambda *_: None).remove


def of_the_parameters(svi: SVI) -> Callable[[], None]:
    return svi.parameters[0].register_hook(lambda grad: grad * 2).remove


def checkpointed(svi: SVI) -> Callable[[], None]:
    svi.model.backbone.checkpointing = True
    return lambda: setattr(svi.model.backbone, "checkpointing", False)


def in_a_handler(svi: SVI) -> Callable[[], None]:
    handler = poutine.scale(scale=2.0)
    handler.__enter__()
    return lambda: handler.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (hooked, "has hooks"),
        (of_the_parameters, "has hooks"),
        (checkpointed, "checkpointing is on"),
        (in_a_handler, "a Pyro handler"),
    ],
)
def test_what_does_not_fit_runs_eagerly_and_says_so_once(change: Callable, reason: str) -> None:
    svi, plain = captured(make("additive"), Again()), make("additive")
    found = []
    for own in (svi, plain):
        undo = change(own)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found.append((trained(own, questions, 2), [str(w.message) for w in said]))
        finally:
            undo()
    assert same(found[0][0], found[1][0])
    assert [reason in sentence for sentence in found[0][1]] == [True]
    assert not svi.replayed.recordings
    trained(svi, questions, 1)
    assert len(svi.replayed.recordings) == 1


def test_steps_go_on_eagerly_where_a_recording_fails() -> None:
    """What was recorded is given back: the eager step needs the memory."""

    class Once(Again):
        def __call__(self, run: Run, device: torch.device) -> tuple[Outputs, Callable[[], None]]:
            if svi.replayed.recordings:
                raise Unfit("the step cannot be recorded (CUDA out of memory)")
            return super().__call__(run, device)

    def train(svi: SVI) -> list[list[Tensor]]:
        return [*trained(svi, questions, 1), *trained(svi, replace_width, 1), *trained(svi, questions, 2)]

    svi, plain = captured(make("gate"), Once()), eager(make("gate"))
    with pytest.warns(UserWarning, match="out of memory") as said:
        assert same(train(plain), train(svi))
    assert len(said) == 1
    assert not svi.replayed.recordings


@pytest.mark.parametrize("batches", [questions, replies])
def test_a_wider_batch_says_the_same(batches: Callable[[int], Batch]) -> None:
    likelihood = bp.AnswerLikelihood if batches is questions else bp.CompletionLikelihood
    svi, batch = make("lora", likelihood=likelihood()), batches(0)
    wider = widened(batch)
    assert wider.input_ids.shape == (len(batch), 16)
    assert max(wider.asked) == (1 if batches is questions else 16)
    svi.step(batch)
    parts = svi.last
    svi = make("lora", likelihood=likelihood())
    svi.step(wider)
    assert svi.last == pytest.approx(parts, rel=1e-5)


def test_widths_are_few_and_an_eighth_wider_at_most() -> None:
    mask = torch.ones(1, 2048, dtype=torch.bool)
    batches = [Batch(mask[:, :width].long(), mask[:, :width], torch.arange(2)) for width in range(1, 2049)]
    widths = [widened(batch).input_ids.shape[1] for batch in batches]
    assert len({*widths}) <= MOST
    assert all(w <= wide <= max(w + 15, 1.125 * w) for w, wide in enumerate(widths, 1))


def test_what_is_recorded_is_given_back_and_nothing_is_where_nobody_asks() -> None:
    svi = make("lora")
    assert svi.replayed is None
    with replaying(svi):
        assert isinstance(svi.replayed, Replayed)
        svi.step(questions(0))
    assert svi.replayed is None
    assert all(p.grad is None for p in svi.parameters)


def test_micro_batches_run_eagerly() -> None:
    svi = captured(make("lora"), Again())
    with pytest.warns(UserWarning, match="micro-batches share a step"):
        svi.step(questions(0), questions(1))


@contextmanager
def process_group(folder: Path) -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'group'}", rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def test_several_processes_share_an_eager_step(tmp_path: Path) -> None:
    svi, plain = captured(make("gate"), Again()), eager(make("gate"))
    svi.ranks = plain.ranks = Ranks()
    with process_group(tmp_path), pytest.warns(UserWarning, match="several processes"):
        assert same(trained(plain, questions, 2), trained(svi, questions, 2))
    assert not svi.replayed.recordings


def test_a_model_on_several_devices_runs_eagerly() -> None:
    """As `device_map` spreads it: a weight claims to be on a GPU."""
    svi = captured(make("lora"), Again())
    with FakeTensorMode(allow_non_fake_inputs=True):
        svi.parameters.append(torch.empty(2, device="cuda:0"))
    assert svi.replayed.misfit(questions(0)) == "the model is spread over several devices"


def test_cached_states_of_the_lowest_layers_run_eagerly() -> None:
    upper = {"target_modules": ["model.layers.1.self_attn.q_proj", "lm_head"]}
    svi, plain = captured(make("gate", **upper), Again()), eager(make("gate", **upper))
    with pytest.warns(UserWarning, match="lowest layers, which have no adapter, are cached") as said:
        assert same(trained(plain, questions, 2), trained(svi, questions, 2))
    assert len(said) == 1


def test_rows_that_continue_a_prefix_run_eagerly() -> None:
    svi, batch = captured(make("lora"), Again()), questions(0)
    lm = svi.model.backbone.lm
    with torch.no_grad():
        read = lm.model(input_ids=batch.input_ids[:1, :2], use_cache=True).past_key_values
    layers = tuple((layer.keys, layer.values) for layer in read.layers)
    continued = replace(batch, past=Prefix(layers, torch.ones(1, 2, dtype=torch.bool)))
    assert svi.replayed.misfit(continued) == "the rows continue a common prefix"
    assert svi.replayed.misfit(batch) is None


def test_a_quantised_model_runs_eagerly(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="quantises the weights")
    save_backbone(tmp_path)
    pairs = []
    for _ in range(2):
        torch.manual_seed(5)
        model = bp.models.LoRA(load_backbone(str(tmp_path), dtype="int8"), 4, r=3)
        pairs.append(trainer((model, bp.guides.DeltaGuide(model))))
    svi, plain = captured(pairs[0], Again()), eager(pairs[1])
    batch = replace(questions(0), input_ids=questions(0).input_ids % 8, answer_ids=torch.tensor([2, 3, 4]))
    with pytest.warns(UserWarning, match="the language model is quantised"):
        svi.step(batch)
    plain.step(batch)
    assert svi.last == plain.last


def test_a_method_with_gradients_of_its_own_runs_eagerly() -> None:
    class Own(SVI):
        def backward(self, terms: ElboTerms, share: float) -> None:
            super().backward(terms, 2 * share)

    pair = lora_pair()
    with pytest.warns(UserWarning, match="Own computes gradients differently"):
        captured(Own(*pair, adamw(*pair, 1e-2)), Again()).step(questions(0))


def test_on_a_cpu_graphs_are_not_tried() -> None:
    with pytest.warns(UserWarning, match="on a CPU"):
        captured(make("lora")).step(questions(0))


def full_or_padded(step: int) -> Batch:
    """Four rows, of which some are padded in two steps of three; transformers reads whether any is."""
    generator = torch.Generator().manual_seed(step)
    full = make_batch(
        tuple(tuple(torch.randint(1, 61, (7,), generator=generator).tolist()) for _ in range(4))
    )
    return questions(step) if step % 3 else replace(full, labels=questions(step).labels)


def of_likelihood(likelihood: type) -> SVI:
    torch.manual_seed(5)
    return trainer(bara_pair(form="gate", scale=0.3, likelihood=likelihood()))


@pytest.mark.parametrize(("name", "likelihood"), REPLAYED)
def test_replays_on_a_cpu_have_the_bits_of_eager_steps(name: str, likelihood: type) -> None:
    batches = full_or_padded if likelihood is bp.AnswerLikelihood else BATCHES[likelihood]
    svi = of_method(name, likelihood)
    svi.replayed = Replayed(svi, 1)
    assert same(trained(of_method(name, likelihood), batches), trained(svi, batches))
    if name in UNFIT:
        assert "index_fill_" in svi.replayed.unfit
    else:
        assert svi.replayed.unfit is None
        assert len(svi.replayed.recordings) == (2 if batches is full_or_padded else 1)


def test_torch_keeps_no_recording_on_a_cpu() -> None:
    """What `torch.jit.trace` returns stays in this unit until the process ends."""
    kept = len(torch.jit._state._python_cu.get_functions())
    svi = make("gate")
    svi.replayed = Replayed(svi, 1)
    trained(svi, questions, 4)
    assert len(svi.replayed.recordings) == 1
    assert len(torch.jit._state._python_cu.get_functions()) == kept


def test_a_changed_setting_is_recorded_anew_on_a_cpu() -> None:
    svi, plain = make("gate"), make("gate")
    svi.replayed = Replayed(svi, 1)
    for beta in (0.01, 0.5):
        svi.model.beta_theta = plain.model.beta_theta = beta
        assert same(trained(plain, questions, 4), trained(svi, questions, 4))
    assert len(svi.replayed.recordings) == 2


@pytest.mark.parametrize("name", EAGER)
def test_methods_with_a_training_scheme_of_their_own_run_eagerly_on_a_cpu(name: str) -> None:
    svi = of_method(name)
    svi.replayed = Replayed(svi, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(trained(of_method(name), questions, 2), trained(svi, questions, 2))
    assert not svi.replayed.recordings


class Scaled(bp.AnswerLikelihood):
    """A stranger's likelihood, whose weight depends on the rows in a way that a replay cannot see."""

    def weight(self, batch: Batch) -> float:
        return 2.0

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        with poutine.scale(scale=self.weight(batch)):
            return super().observe(hidden, batch, head)


class Reading(Scaled):
    def weight(self, batch: Batch) -> float:
        return 1.0 + int(batch.labels.sum() % 3)


class Choosing(Scaled):
    def weight(self, batch: Batch) -> float:
        return 1.0 + len(batch.labels[batch.labels > 0])


class Counting(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Batch] = []

    def weight(self, batch: Batch) -> float:
        self.seen.append(batch)
        return 1.0 + len(self.seen) % 5


@pytest.mark.parametrize(
    ("likelihood", "unfit"),
    [
        (Reading, None),
        (Choosing, "cannot be recorded (aten.index.Tensor)"),
        (Counting, "differs from the eager step"),
    ],
)
def test_what_python_reads_of_rows_is_not_replayed(likelihood: type, unfit: str | None) -> None:
    svi = of_likelihood(likelihood)
    svi.replayed = Replayed(svi, 1)
    found = trained(svi, questions)
    assert (unfit is None and svi.replayed.unfit is None) or unfit in svi.replayed.unfit
    if likelihood is not Counting:  # whose weight also counts the steps that are tried
        assert same(trained(of_likelihood(likelihood), questions), found)


def test_an_unknown_token_is_named_by_a_replay() -> None:
    svi = of_likelihood(bp.CompletionLikelihood)
    svi.replayed = Replayed(svi, 0)
    trained(svi, replies, 3)
    assert svi.replayed.recordings
    batch = replies(3)
    with pytest.raises(DataError, match="token 999"):
        svi.step(replace(batch, targets=torch.where(batch.scored, 999, batch.targets)))


@pytest.mark.parametrize("error", [RuntimeError, TypeError, AttributeError])
def test_a_step_that_torchscript_refuses_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refused(*args: object, **options: object) -> None:
        raise error("no")

    monkeypatch.setattr(torch._C, "_create_graph_by_tracing", refused)
    svi = make("gate")
    svi.replayed = Replayed(svi, 1)
    assert same(trained(make("gate"), questions, 4), trained(svi, questions, 4))
    assert svi.replayed.unfit == "no"
