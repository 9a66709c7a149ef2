"""BaRA by stochastic variational inference, in the open: model, guide, SVI, loop, Predictive, ArviZ.

    python -m experiments.svi                                  # the bundled language model, a minute
    python -m experiments.svi --prior lognormal --guide gamma --form additive
    python -m experiments.svi --model runs/smollm2 --task rows.csv --steps 600

`--loop stock` trains by Pyro's own `SVI`, `TraceMeanField_ELBO` and `Adam`. `--loop ours` trains by
`bp.SVI`, which adds a learning-rate schedule. Both write draws.nc, gates.png and answers.png into `--out`.
"""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from statistics import mean

import arviz as az  # noqa: TID251 - as a reader would import it
import matplotlib.pyplot as plt
import pyro
import torch
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from pyro.optim import Adam  # type: ignore[attr-defined]
from torch import Tensor

import bara_pyro as bp
from bara_pyro.core.priors import PRIORS
from bara_pyro.data import EncodedSplit
from bara_pyro.guides.families import FAMILIES


def main() -> None:
    """Train, print a reliability table of the test rows, and write draws of the gates."""
    args = arguments()
    pyro.clear_param_store()
    torch.manual_seed(args.seed)
    backbone, task = bp.load_backbone(args.model), bp.load_task(args.task)
    answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
    train, test = (bp.encode(rows, backbone.tokenizer) for rows in (task.train, task.test[: args.test_rows]))

    model = bp.models.BaRA(backbone, num_data=len(train), form=args.form, theta_prior=args.prior)
    guide = FAMILIES[args.guide](model)
    if args.loop == "stock":
        slower = 0.1 if args.form == "gate" else 1.0  # there gates wander faster than A and B can follow
        rates = {True: {"lr": slower * args.lr}, False: {"lr": args.lr}}
        optim = Adam(lambda parameter: rates[parameter.startswith("guide.sites.theta")])
        svi = SVI(model, guide, optim, TraceMeanField_ELBO())
    else:
        optim = bp.adamw(model, guide, lr=args.lr)
        svi = bp.SVI(model, guide, optim, scheduler=bp.linear_schedule(optim, args.steps))

    losses = []
    for step in range(1, args.steps + 1):
        rows = bp.training_batches(len(train), args.batch_size, seed=args.seed, step=step)
        losses.append(svi.step(train.batch(rows, answers)) / len(train))
        if step % 100 == 0:
            print(f"step {step:5d}   negative ELBO {mean(losses[-100:]):.3f} nats a row, over 100 steps")

    predictive = Predictive(model, guide=guide, num_samples=args.samples, return_sites=["_RETURN"])
    probs = predicted(predictive, test, answers)
    print_reliability(probs, torch.tensor(test.labels))
    shown = test.batch(range(min(64, len(test))), answers)
    write_draws(bp.to_inference_data((model, guide), rows=shown, samples=100), args.out)


def predicted(predictive: Predictive, rows: EncodedSplit, answers: Tensor) -> Tensor:
    """Return the posterior-predictive probabilities, `rows x answers`: the mean over draws."""
    drawn = [predictive(batch)["_RETURN"] for batch in bp.batches(rows, answers, batch_size=64)]
    return torch.cat([log_probs.double().exp().mean(0) for log_probs in drawn])


def print_reliability(probs: Tensor, labels: Tensor, bins: int = 10) -> None:
    """Print how often answers are right, by how sure the model was of them, and the scores."""
    found = bp.metrics.reliability_bins(probs.log(), labels, bins)
    print("confidence    rows    right (%)    mean confidence (%)")
    for low, rows, right, sure in zip(
        found.edges, found.counts, found.accuracy, found.confidence, strict=False
    ):
        if rows:
            print(f"from {low:.1f} {rows:11d} {100 * right:12.1f} {100 * sure:22.1f}")
    scores = bp.metrics.evaluate(probs.log(), labels)
    print(", ".join(f"{name} {scores[name]:.3f}" for name in ("acc", "ece", "nll")))


def write_draws(data: az.InferenceData, out: Path) -> None:
    """Write the draws, the sparsity of gates by layer, and a predictive check."""
    out.mkdir(parents=True, exist_ok=True)
    data.to_netcdf(str(out / "draws.nc"))
    [axes] = az.plot_forest(data.sample_stats[["sparsity"]], combined=True, hdi_prob=0.95)
    axes.set_title(f"percent of gates below {data.attrs['tau']:g}, by layer (95 % of draws)")
    check = az.plot_ppc(data, num_pp_samples=50)
    check.set_title("shares of the answers, observed and drawn")
    for name, shown in (("gates", axes), ("answers", check)):
        shown.figure.savefig(out / f"{name}.png", bbox_inches="tight")
        plt.close(shown.figure)
    print(f"Written: {', '.join(str(out / name) for name in ('draws.nc', 'gates.png', 'answers.png'))}")


def arguments() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="microworld", help="language model: a folder or a hub name")
    parser.add_argument("--task", default="micro-wgs", help="name of a task, or a file of rows")
    parser.add_argument("--form", choices=("gate", "additive"), default="gate")
    parser.add_argument("--prior", choices=[*PRIORS], default="gamma", help="of theta")
    parser.add_argument("--guide", choices=[*FAMILIES], default="weibull")
    parser.add_argument("--loop", choices=("stock", "ours"), default="stock")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--samples", type=int, default=10, help="draws of a prediction")
    parser.add_argument("--test-rows", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/svi"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
