"""Train a LoRA with PEFT, put each posterior around it, and score them all on the same test rows.

    python -m experiments.from_adapter --model runs/smollm2 --rows own.csv --new new.csv --test test.csv

The files have the columns `text` and `label`. PEFT and every method see the rows of `--rows`; the rows of
`--new` fit one temperature for the adapter as it is. `anew` is BaRA by default, without the adapter.
"""

import math
import random
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy

import bara_pyro as bp
from bara_pyro.data import EncodedSplit
from bara_pyro.metrics import accuracy, ece, nll, posterior_predictive
from bara_pyro.posthoc.temperature import best_common_log_temperature
from bara_pyro.runs.evaluate import draw

SAMPLES = 10


def main() -> None:
    """Print a line of scores for each method."""
    args = arguments()
    if not (args.out / "adapter").exists():
        train_with_peft(args)
    print(f"{'method':12} {'acc':>5} {'ECE':>5} {'NLL':>6} {'CPU s':>6}")
    backbone = bp.load_backbone(args.model)
    new, test = (bp.load_task(args.rows, test_file=file).test for file in (args.new, args.test))
    for method in args.methods:
        begun = time.process_time()
        common = {"task": args.rows, "test_file": args.test, "model": backbone, "seed": args.seed}
        common["out"] = args.out / method
        if method == "anew":
            # A rate that is given is not searched for, which would take 2.5 times as long.
            run = bp.train(**common, top_layers=args.top_layers, target_modules="all-linear", lr=1e-3)
        else:
            # Split-half calibration would fit its temperature on rows that the adapter knows.
            more = {"calibrated": False, "steps": args.steps} if method == "bara-gate" else {}
            run = bp.from_peft(args.out / "adapter", method=method, **common, **more)
        fitted = time.process_time() - begun
        rows = bp.encode(test, backbone.tokenizer)
        log_probs = posterior_predictive(draw(run, rows, 0 if method == "lora" else SAMPLES))
        report(method, log_probs, rows, fitted)
        if method == "lora":
            begun = time.process_time()
            held_out = bp.encode(new, backbone.tokenizer)
            log_t = best_common_log_temperature(draw(run, held_out, 0), torch.tensor(held_out.labels))
            fitted = time.process_time() - begun
            report("temperature", (log_probs / math.exp(log_t)).log_softmax(-1), rows, fitted)


def train_with_peft(args: Namespace) -> None:
    """Train a LoRA on the last layers for ten epochs, as one does without this package."""
    backbone, task = bp.load_backbone(args.model), bp.load_task(args.rows, test_file=args.test)
    answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
    split = bp.encode(task.train, backbone.tokenizer)
    torch.manual_seed(args.seed)
    depth = backbone.lm.config.num_hidden_layers
    top = "|".join(map(str, range(depth - args.top_layers, depth)))
    targets = rf".*layers\.({top})\..*_proj"
    config = LoraConfig(r=args.r, lora_alpha=2 * args.r, target_modules=targets, task_type="CAUSAL_LM")
    model = get_peft_model(backbone.lm, config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model.train()
    for epoch in range(args.epochs):
        order = random.Random(epoch).sample(range(len(split)), len(split))
        for first in range(0, len(order), 8):
            batch = split.batch(order[first : first + 8], answers)
            logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, -1]
            cross_entropy(logits, answers[batch.labels]).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(args.out / "adapter")


def report(name: str, log_probs: Tensor, rows: EncodedSplit, seconds: float) -> None:
    """Print accuracy and ECE in percent, NLL in nats, and the seconds of the fit."""
    labels = torch.tensor(rows.labels)
    scores = f"{accuracy(log_probs, labels):5.1f} {ece(log_probs, labels):5.1f} {nll(log_probs, labels):6.3f}"
    print(f"{name:12} {scores} {seconds:6.0f}", flush=True)


def arguments() -> Namespace:
    """Return the options."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="microworld", help="language model: folder or hub name")
    for name, use in (("rows", "that PEFT trains on"), ("new", "that it has not seen"), ("test", "to score")):
        parser.add_argument(f"--{name}", type=Path, required=True, help=f"rows {use}")
    parser.add_argument("--methods", nargs="+", default=["lora", "bara-gate", "tfb", "laplace", "anew"])
    parser.add_argument("--top-layers", type=int, default=2, help="layers with a LoRA, from the last")
    parser.add_argument("--r", type=int, default=8, help="rank of the LoRA")
    parser.add_argument("--steps", type=int, help="of bara-gate; by default they follow from the rows")
    parser.add_argument("--epochs", type=int, default=10, help="of PEFT's training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/from_adapter"), help="folder of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
