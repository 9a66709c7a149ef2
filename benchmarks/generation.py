"""Measure generated tokens per second against `generate` of PEFT's LoRA, as interleaved medians of one run.

python -m benchmarks.generation [--size micro|896|FOLDER] [--rounds 5] [--rows 8] [--prompt 64] [--new 64]
                                [--out FILE]

All contestants sample at temperature 1 with a key-value cache, the same prompts and the same number of
tokens; no reply ends early. A model from a local Hugging Face folder is loaded in bfloat16.
"""

import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bara_pyro.extras.replies.generation import Prompt, generate
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA
from benchmarks.speed import interleaved
from benchmarks.systems import BETA, NUM_DATA, TARGETS, Size, make_lm, size_of, write

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("lora", {}),
    "bara gate, mean": ("gate", {"draws": "mean"}),
    "bara gate, a draw a reply": ("gate", {}),
    "bara gate, Phi alone drawn": ("gate", {"fresh_theta": False}),
    "bara additive, a draw a reply": ("additive", {}),
    "bara gate, mixture of 4": ("gate", {"mixture": 4}),
}


def peft_lora(
    size: Size, prompts: torch.Tensor, new: int, lm: PreTrainedModel | None = None
) -> Callable[[], object]:
    """Return a call that generates with PEFT's LoRA."""
    lm = lm or make_lm(size)
    lm.generation_config.eos_token_id = None
    model = peft.get_peft_model(lm, peft.LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS))
    model.eval()

    def call() -> object:
        mask = torch.ones_like(prompts)
        with torch.no_grad():
            return model.generate(
                input_ids=prompts, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=new
            )

    return call


def words(vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each word and no end-of-text token."""
    model = WordLevel({f"w{number}": number for number in range(vocabulary)}, unk_token="w0")  # noqa: S106
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), pad_token="w0")  # noqa: S106


def ours(
    size: Size, name: str, prompts: torch.Tensor, new: int, lm: PreTrainedModel | None = None, **how: object
) -> Callable[[], object]:
    """Return a call that generates with a method of this library."""
    lm = lm or make_lm(size)
    lm.generation_config.eos_token_id = None
    backbone = Backbone(lm, words(size.vocabulary))
    model: LoRA | BaRA
    guide: DeltaGuide | WeibullGuide
    if name == "lora":
        model = LoRA(backbone, NUM_DATA)
        guide = DeltaGuide(model)
    else:
        model = BaRA(backbone, NUM_DATA, form="gate" if name == "gate" else "additive", beta_theta=BETA)
        guide = WeibullGuide(model)
    rows = [Prompt(tuple(row), str(i)) for i, row in enumerate(prompts.tolist())]

    def call() -> object:
        return list(generate(model, guide, rows, max_new_tokens=new, memory_budget=2**40, **how))  # type: ignore[arg-type]

    return call


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="micro", help="micro, 896, or a local Hugging Face folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens of a reply")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    size = size_of(args.size)
    torch.manual_seed(1)
    prompts = torch.randint(5, size.vocabulary, (args.rows, args.prompt))
    calls = {"peft lora": peft_lora(size, prompts, args.new)}
    calls |= {label: ours(size, name, prompts, args.new, **how) for label, (name, how) in SETTINGS.items()}
    found = interleaved(calls, args.rounds, warmup=1, clock=clock)
    for label, seconds in found.items():
        tokens = args.rows * args.new / seconds
        ratio = seconds / found["peft lora"]
        print(f"{label:<32} {tokens:9.1f} tokens/s   {ratio:6.3f} of PEFT LoRA's time")
    setting = {"size": args.size, "rows": args.rows, "prompt": args.prompt, "new": args.new}
    write(args.out, {**setting, "seconds": found})


if __name__ == "__main__":
    main()
