"""What ends a reply, what makes a file of replies, what is refused: found by a reading from outside."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from core_cases import make_lm
from generation_cases import PROMPTS, adapted, read_again
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast

import bara_pyro as bp
from bara_pyro.data.chat import tokens_of, turn_end
from bara_pyro.data.conversations import Conversation
from bara_pyro.errors import ConfigError
from bara_pyro.extras.replies.generation import generate
from bara_pyro.extras.replies.generation.decoding import Decoding
from bara_pyro.extras.replies.generation.file import made_by
from bara_pyro.extras.replies.generation.generate import _ends
from bara_pyro.lm.backbone import Backbone
from bara_pyro.runs.system import System

TEMPLATE = (
    "{% for m in messages %}<turn>{{ m.role }} {{ m.content }} <over> {% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant {% endif %}"
)
OPEN = TEMPLATE.replace("<over>", "")


def chatting(template: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer of words whose texts end with `<end>`, and whose turns may end with `<over>`."""
    words = ["<unk>", "<end>", "<over>", "<turn>", "user", "assistant", "hi", "there", "you"]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        eos_token="<end>",
        additional_special_tokens=["<over>", "<turn>"],
    )
    tokenizer.chat_template = template
    return tokenizer


def test_a_turn_ends_with_the_token_of_its_template() -> None:
    assert turn_end(chatting(TEMPLATE)) == 2
    assert turn_end(chatting(OPEN)) is None
    assert turn_end(chatting(None)) is None
    assert turn_end(chatting("{{ raise_exception('for tools alone') }}")) is None
    assert turn_end(chatting("{% for m in messages %}<turn>{{ m.role }} <over> {% endfor %}")) is None


@pytest.mark.parametrize(("template", "end"), [(TEMPLATE, 2), (OPEN, 1)])
def test_what_is_learnt_ends_with_what_generation_stops_at(template: str, end: int) -> None:
    tokenizer = chatting(template)
    said = Conversation(({"role": "user", "content": "hi"},), "hi there", "one")
    _, reply = tokens_of(said, tokenizer)
    assert reply == [6, 7, end]
    lm = make_lm("qwen2")
    for told in (None, 5, [5, 8]):  # whatever the model's folder says
        lm.generation_config.eos_token_id = told
        assert end in _ends(Backbone(lm, tokenizer))


@pytest.mark.parametrize(
    "name", ["eos_token_id", "prompt_lookup_num_tokens", "return_dict_in_generate", "watermarking_config"]
)
def test_what_would_spoil_replies_is_refused(name: str) -> None:
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=None, decode=lambda tokens, **_: "")
    pair = adapted("lora", Backbone(make_lm("qwen2"), tokenizer))
    with pytest.raises(ConfigError, match=f"{name} is set by"):
        list(generate(*pair, PROMPTS, max_new_tokens=2, **{name: 3}))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> System:
    out = tmp_path_factory.mktemp("run") / "out"
    return bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out=out)


def test_the_same_settings_on_other_rows_are_another_run(run: System) -> None:
    how = Decoding()
    before = made_by(run, how, 0)
    assert made_by(run, how, 0) == before
    parameter = next(run.guide.parameters())
    with torch.no_grad():
        kept = parameter.clone()
        parameter += 0.01
        assert made_by(run, how, 0) != before
        parameter.copy_(kept)
    assert made_by(run, how, 0) == before


def test_arguments_of_generate_are_taken_or_refused_in_a_sentence(run: System) -> None:
    found = bp.generate(run, ["bimu keeps"], max_new_tokens=2, memory_budget=1, seed=3)
    assert found == bp.generate(run, ["bimu keeps"], max_new_tokens=2, seed=3)
    with pytest.raises(ConfigError, match="Unknown argument of generate 'repetition_penalty'"):
        bp.generate(run, ["bimu keeps"], repetition_penalty=1.2)


def mamba(folder: Path) -> bp.Backbone:
    """A tiny Mamba with the microworld's tokenizer."""
    tokenizer = bp.load_backbone("microworld").tokenizer
    torch.manual_seed(0)
    config = MambaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        state_size=4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    MambaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return bp.load_backbone(folder)


@pytest.mark.filterwarnings("ignore")
def test_a_state_that_does_not_know_its_length_goes_on(tmp_path: Path) -> None:
    """Mamba is told neither positions nor a mask behind its prompt: theta is drawn anew at every token."""
    backbone = mamba(tmp_path)
    torch.manual_seed(1)
    likelihood = bp.CompletionLikelihood()
    model = bp.models.BaRA(
        backbone, 8, form="gate", likelihood=likelihood, target_modules=["in_proj", "out_proj"]
    )
    guide = bp.guides.WeibullGuide(model)
    with torch.no_grad():
        for parameter in [*model.parameters(), *guide.parameters()]:
            parameter.add_(0.1 * torch.randn_like(parameter))
    for reply in generate(model, guide, PROMPTS, max_new_tokens=5, seed=4):
        prompt = next(prompt for prompt in PROMPTS if prompt.id == reply.prompt)
        again = read_again((model, guide), prompt, reply.token_ids, 1, seed=4)
        assert sum(reply.log_probs) == pytest.approx(float(again), abs=1e-4)
