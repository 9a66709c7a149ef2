"""Which tokens use the gates: the expected share of gates that are nearly off, by token and layer.

For each token the share of entries of `Phi * theta` below tau, averaged over draws and modules (paper,
Section "Token-level Sparsity Visualization"). The answer head is left out: it sees the last token alone.
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

MAX_LENGTH = 512  # tokens of a text
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
"""Nine short texts of nine domains."""


class TextUse(Result):
    """One text."""

    title: str  # what it is called
    tokens: list[str]  # the T tokens as they are read
    mean: list[Number]  # expected share of gates off by token, over all modules, `T`, percent to two decimals
    percent: list[list[Number]]  # the same by module, `M x T`


class TokenUse(Result):
    """Token maps."""

    tau: float  # threshold below which a gate is off
    draws: int  # that expectations are over; 0 for the mean gate
    modules: list[str]  # paths of the M modules
    texts: list[TextUse]  # in the order given


def token_use(c: Context) -> TokenUse | None:
    """Return the token maps; None where no adapter but the answer head's has a gate."""
    if not c.has_gates or all(target.is_head for target in c.system.model.targets):
        return None
    samples = c.options.token_samples if c.system.guide.stochastic else 0
    texts = {f"text {i}": text for i, text in enumerate(c.options.texts, 1)} or default_texts(c.system)
    return token_maps(c.system, texts, samples=samples, tau=c.options.tau)


def default_texts(system: System) -> dict[str, str]:
    """Return nine texts that the language model can read: of nine domains in English, or the run's own.

    A language model of a small world reads no other, and what is said of words is said of those of its task.
    """
    if _readable(system, " ".join(TEXTS.values())):
        return dict(TEXTS)
    name = system.config.task.evaluate_on
    rows = {row.id: row for row in getattr(system.task, name)}
    own = [rows[row_id] for row_id in system.split(name).ids[: len(TEXTS)]]
    return {row.id: f"{row.context} {row.question}".strip() for row in own}


def _readable(system: System, text: str) -> bool:
    tokenizer = system.backbone.tokenizer
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokenizer.unk_token_id is None or ids.count(tokenizer.unk_token_id) < len(ids) / 10


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
    """Return the expected sparsity of every token of some texts.

    Args:
        system: a fitted BaRA.
        texts: title -> text.
        samples: number of draws; 0 for the mean gate.
        tau: threshold.
        seed: of the draws.
        modules: paths of the modules; all but the answer head if None.

    Raises:
        ConfigError: the method has no gates, an unknown module, no module but the head, `tau` negative.
        DataError: no text, an empty one, or one that is too long.

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
        raise ConfigError(f"{system.config.method.name} has no gates: token maps are of a BaRA run.")
    body = [target.path for target in model.targets if not target.is_head]
    paths = [path for path in chosen_modules(model, modules) if path in body]
    if not paths:
        raise ConfigError("There is no module but the answer head, which sees the last token alone.")
    if not texts or not all(text.strip() for text in texts.values()):
        raise DataError("A text is empty, or there is none: give each title a text.")
    longest = max(MAX_LENGTH, system.config.task.max_length)  # a row that is trained on is no longer
    examples = [Example(title, text) for title, text in texts.items()]
    split = encode(examples, tokenizer, longest, context=system.backbone.context)
    found = []
    for row, title in enumerate(split.ids):
        batch = split.batch([row], system.answer_ids).to(system.backbone.device)
        below = torch.zeros(len(paths), batch.input_ids.shape[1], dtype=torch.float64)
        for piece in record(model, system.guide, batch, samples=samples, seed=seed):
            for i, path in enumerate(paths):
                # Of a pruned module the first units alone are gates.
                own = gates.of(piece.values, path)[..., : model.rank_pattern.get(path, model.r)]
                below[i] += (own.abs() < tau).double().mean(-1).sum((0, 1)).cpu()
        percent = (100 * below / max(samples, 1)).float()
        tokens = [tokenizer.decode([token]) for token in split.token_ids[row]]
        rounded = [_rounded(module) for module in percent]
        found.append(TextUse(title=title, tokens=tokens, mean=_rounded(percent.mean(0)), percent=rounded))
    return TokenUse(tau=tau, draws=samples, modules=paths, texts=found)


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 2) for value in values.tolist()]
