"""Token maps: the expected share of gates that are nearly off, by token and layer.

For each token this is the share of entries of `Phi * theta` below tau, averaged over draws and modules
(paper, Section "Token-level Sparsity Visualization"). The answer head is left out because it sees only the
last token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.core.gate_draws import chosen_modules
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.prediction import record
from bara_pyro.data import Example, encode
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.gates.sparsity import TAU, check_tau
from bara_pyro.diagnostics.result import Number, Result
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.system import System

MAX_LENGTH = 512  # the most tokens in a text
TEXTS = {
    "irrigation": "Drip lines bring water to the roots at night, when little of it evaporates.",
    "heritage": "Only three families still carve the wooden masks that open the spring festival.",
    "ethics": "If the program refuses a loan, somebody must be able to say why, and to whom to complain.",
    "shopping": "Most people who leave a full basket behind come back within a day if the price holds.",
    "infection": "A dry cough and a slight fever of more than a week are a reason to listen to the lungs.",
    "classroom": "Pupils watch the lecture at home, so that the lesson is free for their questions.",
    "parks": "On summer evenings the streets around the park are two degrees cooler than the station.",
    "sensors": "The probe in the silo reports heat and moisture every minute and sleeps in between.",
    "imaging": "In the second scan the shadow beside the rib had gone: it was a fold of skin.",
}
"""Nine short texts from nine domains."""


class TextUse(Result):
    """The token map of one text."""

    title: str
    tokens: list[str]  # the T tokens as text
    mean: list[Number]  # `T`: expected share of gates off over all modules, percent with two decimals
    percent: list[list[Number]]  # `M x T`: the same for each module


class TokenUse(Result):
    """Token maps."""

    tau: float  # a gate below this threshold is off
    draws: int  # number of draws averaged over; 0 for the mean gate
    modules: list[str]  # paths of the M modules
    texts: list[TextUse]  # in the order given


def token_use(c: Context) -> TokenUse | None:
    """Return the token maps of a run; None if only the answer head (or nothing) has gates."""
    if not c.has_gates or all(target.is_head for target in c.system.model.targets):
        return None
    samples = 2 * c.options.samples if c.system.guide.stochastic else 0
    texts = {f"text {i}": text for i, text in enumerate(c.options.texts, 1)} or default_texts(c.system)
    return token_maps(c.system, texts, samples=samples, tau=c.options.tau)


def default_texts(system: System) -> dict[str, str]:
    """Return nine texts for token maps: English texts, or rows of the run if its model cannot read those.

    The language model of a microworld knows only the words of its tasks.
    """
    tokenizer = system.backbone.tokenizer
    ids = tokenizer(" ".join(TEXTS.values()), add_special_tokens=False)["input_ids"]
    if tokenizer.unk_token_id is None or ids.count(tokenizer.unk_token_id) < len(ids) / 10:
        return dict(TEXTS)
    name = system.config.task.evaluate_on
    rows = {row.id: row for row in getattr(system.task, name)}
    examples = [rows[row_id] for row_id in system.split(name).ids[: len(TEXTS)]]
    return {row.id: f"{row.context} {row.question}".strip() for row in examples}


@torch.no_grad()
def token_maps(
    system: System,
    texts: dict[str, str],
    *,
    samples: int = 100,
    tau: float = TAU,
    seed: int = 0,
    modules: Sequence[str] | None = None,
) -> TokenUse:
    """Return the expected sparsity of the gates at every token of some texts.

    Args:
        system: a fitted BaRA run.
        texts: title -> text.
        samples: number of draws; 0 for the mean gate.
        tau: a gate below this threshold counts as off.
        seed: seed of the draws.
        modules: paths of the modules; if None, all except the answer head.

    Raises:
        ConfigError: the method has no gates, a module is unknown, only the answer head has gates, or `tau` is
            negative.
        DataError: there is no text, or a text is empty or too long.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.gates.tokens import token_maps
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> [text] = token_maps(run, {"goats": "in winter bimu keeps goats ."}, samples=5).texts
        >>> text.tokens, len(text.mean)
        (['in', 'winter', 'bimu', 'keeps', 'goats', '.'], 6)
    """
    check_tau(tau)
    model, gates, tokenizer = system.model, system.model.gates, system.backbone.tokenizer
    require_answer_tokens(model.likelihood, "Token maps")
    if gates is None:
        raise ConfigError(f"{system.config.method.name} has no gates: give a BaRA run for token maps.")
    body = [target.path for target in model.targets if not target.is_head]
    paths = [path for path in chosen_modules(model, modules) if path in body]
    if not paths:
        raise ConfigError(
            "Only the answer head has gates, and it sees only the last token: give a run with other modules."
        )
    if not texts or not all(text.strip() for text in texts.values()):
        raise DataError("There is no text, or a text is empty: give each title a text.")
    longest = max(MAX_LENGTH, system.config.task.max_length)  # training rows always fit
    examples = [Example(title, text) for title, text in texts.items()]
    split = encode(examples, tokenizer, longest, context=system.backbone.context)
    maps = []
    for row, title in enumerate(split.ids):
        batch = split.batch([row], system.answer_ids).to(system.backbone.device)
        below = torch.zeros(len(paths), batch.input_ids.shape[1], dtype=torch.float64)
        for piece in record(model, system.guide, batch, samples=samples, seed=seed):
            for i, path in enumerate(paths):
                # A module of smaller rank has gates only in its first units.
                gate = gates.of(piece.values, path)[..., : model.rank_pattern.get(path, model.r)]
                below[i] += (gate.abs() < tau).double().mean(-1).sum((0, 1)).cpu()
        percent = (100 * below / max(samples, 1)).float()
        tokens = [tokenizer.decode([token]) for token in split.token_ids[row]]
        rounded = [_rounded(module) for module in percent]
        maps.append(TextUse(title=title, tokens=tokens, mean=_rounded(percent.mean(0)), percent=rounded))
    return TokenUse(tau=tau, draws=samples, modules=paths, texts=maps)


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 2) for value in values.tolist()]
