"""Priors x guides x gates of BaRA (both, phi, theta), each trained by SVI from the same start, in one table.

    python -m experiments.ablation                             # 18 trainings on the bundled task: 20 minutes
    python -m experiments.ablation --priors gamma --guides weibull delta --latents "phi*theta" phi theta

Scores are those of validation rows, of one seed: a difference of a few points of accuracy is noise.
"""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from itertools import product
from typing import get_args

import torch

import bara_pyro as bp
from bara_pyro.core.prediction import predict
from bara_pyro.core.priors import PRIORS
from bara_pyro.data import EncodedSplit
from bara_pyro.guides.families import FAMILIES
from bara_pyro.models.bara import Latent

Pair = tuple[bp.models.BaRA, bp.guides.AmortizedGuide]


def main() -> None:
    """Train each combination and print its scores."""
    args = arguments()
    backbone, task = bp.load_backbone(args.model), bp.load_task(args.task)
    answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
    train, held_out = (bp.encode(rows, backbone.tokenizer) for rows in (task.train, task.validation))
    print(f"{'latent':12}{'prior':14}{'guide':18}{'NLL (nats)':>12}{'ECE (%)':>10}{'accuracy (%)':>14}")
    for latent, prior, guide in product(args.latents, args.priors, args.guides):
        torch.manual_seed(args.seed)
        model = bp.models.BaRA(
            backbone, num_data=len(train), form="gate", latent=latent, phi_prior=prior, theta_prior=prior
        )
        pair = model, FAMILIES[guide](model)
        fit(pair, train, answers, args)
        scores = score(pair, held_out, answers, args.samples)
        print(
            f"{latent:12}{prior:14}{guide:18}{scores['nll']:12.3f}{scores['ece']:10.1f}{scores['acc']:14.1f}",
            flush=True,
        )


def fit(pair: Pair, rows: EncodedSplit, answers: torch.Tensor, args: Namespace) -> None:
    """Minimise the negative ELBO; a KL without a closed form is estimated from the draws."""
    optim = bp.adamw(*pair, lr=args.lr)
    elbo = bp.MeanFieldELBO(sampled_kl=True)
    svi = bp.SVI(*pair, optim, elbo, scheduler=bp.linear_schedule(optim, args.steps))
    for step in range(args.steps):
        svi.step(rows.batch(bp.training_batches(len(rows), 4, seed=args.seed, step=step), answers))


def score(pair: Pair, rows: EncodedSplit, answers: torch.Tensor, samples: int) -> dict[str, float]:
    """Return the scores of the posterior-predictive probabilities."""
    drawn = [predict(*pair, batch, samples=samples) for batch in bp.batches(rows, answers, batch_size=64)]
    log_probs = torch.cat([bp.metrics.posterior_predictive(draws) for draws in drawn])
    return bp.metrics.evaluate(log_probs, torch.tensor(rows.labels))


def arguments() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="microworld", help="language model: a folder or a hub name")
    parser.add_argument("--task", default="micro-wgs", help="name of a task, or a file of rows")
    some = ["gamma", "lognormal", "halfnormal"]
    parser.add_argument("--priors", nargs="+", choices=[*PRIORS], default=some, help="of Phi and theta")
    some = ["weibull", "gamma", "delta"]
    parser.add_argument("--guides", nargs="+", choices=[*FAMILIES], default=some)
    parser.add_argument("--latents", nargs="+", choices=get_args(Latent), default=["phi*theta", "phi"])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--samples", type=int, default=10, help="draws of a prediction")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
