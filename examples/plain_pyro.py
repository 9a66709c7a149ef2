"""BaRA's gate form in plain Pyro: program, guide, ELBO and training loop in one file.

    y = W0 x + s B ((Phi * theta) * (A x))       Phi, theta ~ Gamma(1, 1)       q: Weibull

This is the same program and guide as `bara_pyro.models.BaRA` and `bara_pyro.guides.WeibullGuide`: a test
trains both with the same noise and compares their losses. The library adds speed, other forms, priors and
guides, likelihoods of whole replies, and the handling of runs (data, evaluation, calibration, export).

Run it with `python examples/plain_pyro.py`.
"""

import math

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical, Gamma
from pyro.infer import TraceMeanField_ELBO
from pyro.poutine.guide import GuideMessenger
from torch import nn
from torch.nn import functional as F

import bara_pyro as bp
from bara_pyro.core.distributions import MeanWeibull


class Program(nn.Module):
    """A frozen language model with a gated low-rank adapter on each layer of `paths`; `y` is the answer."""

    def __init__(self, lm, paths, num_data, r=8, alpha=16.0, beta=1e-5):
        super().__init__()
        self.frozen = (lm,)  # a tuple hides its weights from the parameters of the program
        self.paths, self.num_data, self.r, self.scaling, self.beta = paths, num_data, r, alpha / r, beta
        layers = [lm.get_submodule(path) for path in paths]
        self.A = nn.ParameterList(torch.empty(r, layer.in_features) for layer in layers)
        self.B = nn.ParameterList(torch.zeros(layer.out_features, r) for layer in layers)
        for A in self.A:
            nn.init.kaiming_uniform_(A, a=math.sqrt(5))

    def change(self, i, phi, x):
        """Return the adapter's output of layer i for its input x, `rows x tokens x in_features`."""
        prior = Gamma(1.0, 1.0).expand([*x.shape[:-1], self.r]).to_event(1)
        with poutine.scale(scale=self.beta):  # weight of theta's KL
            theta = pyro.sample(f"theta/{i}", prior, infer={"input": x})
        return self.scaling * F.linear(phi[i] * theta * F.linear(x, self.A[i]), self.B[i])

    def forward(self, batch):
        """Run the program; return the logits of the answers, `rows x answers`."""
        lm, mask, head = self.frozen[0], batch.attention_mask, self.paths.index("lm_head")
        with pyro.plate("modules", len(self.paths), dim=-1):
            phi = pyro.sample("phi", Gamma(1.0, 1.0).expand([len(self.paths), self.r]).to_event(1))
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(mask)), dim=-2):
            with pyro.plate("tokens", mask.shape[1], dim=-1), poutine.mask(mask=mask):
                body = [i for i in range(len(self.paths)) if i != head]
                hooks = [self.hook(lm.get_submodule(self.paths[i]), i, phi) for i in body]
                positions = (mask.cumsum(-1) - 1).clamp_min(0)
                out = lm.base_model(batch.input_ids, attention_mask=mask.long(), position_ids=positions)
                for hook in hooks:
                    hook.remove()
            last = out.last_hidden_state[:, -1:]  # rows are padded on the left
            with pyro.plate("answer", 1, dim=-1):
                logits = (lm.lm_head(last) + self.change(head, phi, last))[..., batch.answer_ids]
                labels = None if batch.labels is None else batch.labels[:, None]
                pyro.sample("y", Categorical(logits=logits), obs=labels)
        return logits[:, 0]

    def hook(self, layer, i, phi):
        """Add the adapter's output to that of layer i."""
        return layer.register_forward_hook(lambda _, args, out: out + self.change(i, phi, args[0]))


class Guide(GuideMessenger, nn.Module):
    """Weibull posteriors with a mean and a noise level 1 / k: free for Phi, linear in the input for theta."""

    def __init__(self, program, noise=0.5):
        nn.Module.__init__(self)
        GuideMessenger.__init__(self, program)
        r, layers = program.r, [program.frozen[0].get_submodule(path) for path in program.paths]
        start = math.log(math.expm1(noise))  # softplus(start) == noise
        self.register_buffer("start", torch.cat([torch.zeros(r), torch.full((r,), start)]))
        self.phi = nn.Parameter(torch.zeros(len(layers), 2 * r))
        self.theta = nn.ParameterList(torch.zeros(2 * r, layer.in_features) for layer in layers)
        for weight in self.theta:
            nn.init.orthogonal_(weight).data[r:] = 0  # all tokens start with the same noise level

    def _pyro_sample(self, msg):
        self.input = msg["infer"].get("input")
        if msg["name"] != "y":  # answers are not observed in prediction
            super()._pyro_sample(msg)

    def get_posterior(self, name, prior):
        """Return the posterior of a site, amortized over the input of its layer."""
        if name == "phi":
            return self.weibull(self.phi)
        x = self.input
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-12)
        return self.weibull(F.linear(unit, self.theta[int(name.removeprefix("theta/"))]))

    def weibull(self, raw):
        """Return the Weibull distributions for raw means and noise levels, `... x 2r`."""
        mean, noise = F.softplus(raw + self.start).chunk(2, dim=-1)
        return MeanWeibull(mean.clamp_min(1e-8), noise.clamp(0.01, 1.0), validate_args=False).to_event(1)


@torch.no_grad()
def predict(program, guide, batch, draws):
    """Return the log of the average probability of each answer over draws of the posterior."""
    log_probs = []
    for _ in range(draws):
        with guide:
            log_probs.append(program(batch.unlabelled()).double().log_softmax(-1))
    return torch.stack(log_probs).logsumexp(0) - math.log(draws)


def main(steps=300, draws=10):
    """Train on a bundled task and print the scores on its test rows."""
    backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
    answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
    train, test = (bp.encode(rows, backbone.tokenizer) for rows in (task.train, task.test[:500]))
    paths = [
        path for path, layer in backbone.lm.named_modules() if path.endswith(("q_proj", "v_proj", "lm_head"))
    ]
    torch.manual_seed(0)
    program = Program(backbone.lm, paths, len(train))
    guide, elbo = Guide(program), TraceMeanField_ELBO()
    rates = [{"params": program.parameters(), "lr": 3e-3}, {"params": guide.parameters(), "lr": 3e-4}]
    optimizer = torch.optim.AdamW(rates, weight_decay=0.0)
    for step in range(steps):
        batch = train.batch(bp.training_batches(len(train), 4, seed=0, step=step), answers)
        loss = elbo.differentiable_loss(program, guide, batch) / len(train)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: negative ELBO {loss.item():.3f} nats a row")
    predicted = [predict(program, guide, batch, draws) for batch in bp.batches(test, answers, batch_size=100)]
    scores = bp.metrics.evaluate(torch.cat(predicted), torch.tensor(test.labels))
    print({name: round(scores[name], 3) for name in ("acc", "nll", "ece")})


if __name__ == "__main__":
    main()
