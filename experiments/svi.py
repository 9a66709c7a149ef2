"""BaRA by stochastic variational inference, in the open: model, guide, SVI, loop, Predictive, ArviZ.

    python -m experiments.svi                                  # the bundled language model, a minute
    python -m experiments.svi --prior lognormal --guide gamma --form additive
    python -m experiments.svi --model runs/smollm2 --task rows.csv --steps 600

`--loop stock` trains by Pyro's own `SVI`, `--loop ours` by `bp.SVI`, which adds a learning-rate schedule.
"""

from argparse import ArgumentParser
from pathlib import Path
from statistics import mean

import arviz as az  # noqa: TID251 - as a reader would import it
import pyro
import torch
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from pyro.optim import Adam  # type: ignore[attr-defined]

import bara_pyro as bp
from bara_pyro.core.priors import PRIORS
from bara_pyro.guides.families import FAMILIES


def main() -> None:
    """Train, print a reliability table of test rows, and write draws of the gates and two figures."""
    parser = ArgumentParser()
    parser.add_argument("--model", default="microworld", help="language model: a folder or a hub name")
    parser.add_argument("--task", default="micro-wgs", help="name of a task, or a file of rows")
    parser.add_argument("--form", choices=("gate", "additive"), default="gate")
    parser.add_argument("--prior", choices=[*PRIORS], default="gamma", help="of theta")
    parser.add_argument("--guide", choices=[*FAMILIES], default="weibull")
    parser.add_argument("--loop", choices=("stock", "ours"), default="stock")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("runs/svi"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pyro.clear_param_store()
    torch.manual_seed(0)

    backbone, task = bp.load_backbone(args.model), bp.load_task(args.task)
    answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
    train, test = (bp.encode(rows, backbone.tokenizer) for rows in (task.train, task.test[:500]))
    model = bp.models.BaRA(backbone, num_data=len(train), form=args.form, theta_prior=args.prior)
    guide = FAMILIES[args.guide](model)
    if args.loop == "stock":
        # In the gate form, theta would otherwise change faster than A and B can follow.
        slow = {"lr": args.lr * (0.1 if args.form == "gate" else 1.0)}
        optim = Adam(lambda name: slow if name.startswith("guide.sites.theta") else {"lr": args.lr})
        svi = SVI(model, guide, optim, TraceMeanField_ELBO())
    else:
        optim = bp.adamw(model, guide, lr=args.lr)
        svi = bp.SVI(model, guide, optim, scheduler=bp.linear_schedule(optim, args.steps))

    losses = []
    for step in range(1, args.steps + 1):
        batch = train.batch(bp.training_batches(len(train), 4, seed=0, step=step), answers)
        losses.append(svi.step(batch) / len(train))
        if step % 100 == 0:
            print(f"step {step:5d}   negative ELBO {mean(losses[-100:]):.3f} nats a row, over 100 steps")

    predictive = Predictive(model, guide=guide, num_samples=10, return_sites=["_RETURN"])
    drawn = [predictive(batch)["_RETURN"] for batch in bp.batches(test, answers, batch_size=64)]
    log_probs, labels = bp.metrics.posterior_predictive(torch.cat(drawn, dim=1)), torch.tensor(test.labels)
    bins = bp.metrics.reliability_bins(log_probs, labels, 10)
    print("confidence    rows    right (%)    mean confidence (%)")
    for low, rows, right, sure in zip(bins.edges, bins.counts, bins.accuracy, bins.confidence, strict=False):
        if rows:
            print(f"from {low:.1f} {rows:11d} {100 * right:12.1f} {100 * sure:22.1f}")
    scores = bp.metrics.evaluate(log_probs, labels)
    print(", ".join(f"{name} {scores[name]:.3f}" for name in ("acc", "ece", "nll")))

    data = bp.to_inference_data(model, guide, test.batch(range(64)[: len(test)], answers))
    data.to_netcdf(str(args.out / "draws.nc"))
    [gates] = az.plot_forest(data.sample_stats[["sparsity"]], combined=True, hdi_prob=0.95)
    gates.set_title("percent of gates below 0.1, by layer")
    gates.figure.savefig(args.out / "gates.png", bbox_inches="tight")
    az.plot_ppc(data, num_pp_samples=50).figure.savefig(args.out / "answers.png", bbox_inches="tight")


if __name__ == "__main__":
    main()
