"""Is the Weibull posterior of the global gates right? Pyro's NUTS on the same program, gate by gate.

    python -m experiments.nuts                                 # four gates, sixteen rows: two minutes
    python -m experiments.nuts --run runs/from_adapter/bara-gate

A and B stay fixed, so that only the global gates Phi are inferred (`latent="phi"`), few enough for NUTS.
The guide is fitted to the same rows by SVI; with `--run`, it is the guide of a run around an adapter, on all
of its training rows. A width below 1 means that the guide is too sure.
"""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator

import pyro
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, TraceMeanField_ELBO
from pyro.optim import ClippedAdam

import bara_pyro as bp
from bara_pyro.diagnostics.posterior.reference import compare_with_reference, nuts
from bara_pyro.guides.families import FAMILIES


def main() -> None:
    """Print the mean of every gate under NUTS and under the guide, and the ratio of their widths."""
    args = arguments()
    print(f"{'gate':42}{'NUTS':>8}{'guide':>8}{'width':>8}")
    for gate, mean, fitted, width in gates_of_run(args) if args.run else gates_of_toy(args):
        print(f"{gate:42}{mean:8.2f}{fitted:8.2f}{width:8.2f}")


def gates_of_toy(args: Namespace) -> Iterator[tuple[str, float, float, float]]:
    """Yield name, both means and the ratio of standard deviations of each gate, with nothing but Pyro."""
    pyro.clear_param_store()
    torch.manual_seed(args.seed)
    backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
    answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
    rows = bp.encode(task.train[: args.rows], backbone.tokenizer).batch(range(args.rows), answers)
    layers = ["layers.3.self_attn.v_proj", "lm_head"]
    model = bp.models.BaRA(
        backbone, num_data=args.rows, form="gate", latent="phi", r=args.r, target_modules=layers
    )
    for name, weight in model.named_parameters():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(weight, std=0.3)  # as after training: at 0 no gate would matter
    model.requires_grad_(False)

    mcmc = MCMC(NUTS(model), num_samples=args.samples, warmup_steps=args.samples // 2, disable_progbar=True)
    mcmc.run(rows)
    exact = mcmc.get_samples()["phi"]

    guide = FAMILIES[args.guide](model)
    rate = {"lr": 0.02, "lrd": 0.01 ** (1 / args.steps)}
    svi = SVI(model, guide, ClippedAdam(rate), TraceMeanField_ELBO())
    for _ in range(args.steps):
        svi.step(rows)
    fitted = Predictive(model, guide=guide, num_samples=args.samples, return_sites=["phi"])(rows)["phi"]
    fitted = fitted.reshape(exact.shape)
    for i, target in enumerate(model.targets):
        for k in range(args.r):
            e, f = exact[:, i, k], fitted[:, i, k]
            yield f"phi[{target.path}, {k}]", e.mean(), f.mean(), f.std() / e.std()


def gates_of_run(args: Namespace) -> Iterator[tuple[str, float, float, float]]:
    """Yield the same for a run, in double precision; print the diagnostics of the chain."""
    run = bp.load_system(args.run)
    split = run.split("train")
    rows = split.batch(range(len(split)), run.answer_ids)
    exact = nuts(run.model, rows, samples=args.samples, warmup=args.samples // 2, seed=args.seed)
    found = compare_with_reference(run.model, run.guide, exact, rows)
    for gate in found.gates:
        yield gate.gate, gate.mean, gate.guide_mean, gate.sd_ratio
    print(f"R-hat {exact.r_hat.max():.2f}, {exact.divergences} divergences")
    print(f"largest difference of a probability: {found.largest_difference:.1f} points")


def arguments() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--run", help="folder of a small run, whose guide is compared")
    parser.add_argument("--guide", choices=[*FAMILIES], default="weibull")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--r", type=int, default=2, help="gates a layer")
    parser.add_argument("--samples", type=int, default=400, help="draws of NUTS, and of the guide")
    parser.add_argument("--steps", type=int, default=1000, help="of SVI")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
