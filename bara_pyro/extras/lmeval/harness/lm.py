"""A run, or a plain language model, as a model of lm-evaluation-harness."""

import copy
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from tqdm import tqdm

from bara_pyro import __version__
from bara_pyro.core.attached import attached
from bara_pyro.data import templates
from bara_pyro.data.replies import EncodedReply
from bara_pyro.errors import ConfigError, DataError, check_choice
from bara_pyro.extras.lmeval.harness.predictives import DRAWN, check_predictive, log_likelihoods
from bara_pyro.extras.lmeval.harness.writing import Request, generated_texts, most_tokens, settings_of
from bara_pyro.extras.replies.generation import Prompt
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.moved import warn_renamed
from bara_pyro.runs.devices import find_device
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import is_run
from bara_pyro.runs.system import System
from bara_pyro.types import Json, PredictiveName

Encoded = tuple[tuple[str, str] | None, list[int], list[int]]
"""An encoded request of lm-eval: texts (None for a window of a long text), context, continuation."""


@register_model("bara")
class BaraLM(HFLM):
    """Evaluate a run with a predictive distribution of `bara_pyro.extras.lmeval.harness.predictives`.

    Log-likelihoods are in nats, from a softmax in float32; for "base" and "mean" `HFLM` computes them. Draws
    are a function of the seed and the context's tokens, so they do not depend on the batch. All continuations
    of a context use the same draws, so their probabilities belong to one distribution.
    `loglikelihood_rolling` uses one draw per window of a text.

    `generate_until` writes greedily unless the task sets another decoding. "base" and "mean" use `HFLM`;
    "joint" and "token" use `generation.generate` with one draw for the whole text: reply 0 of each context,
    and reply n if the task repeats a request.

    Args:
        run: folder of a finished run, or a `System`; with "base" also a language model: 'microworld', a
            Hugging Face folder or a hub name.
        predictive: "joint", "token", "mean" or "base".
        samples: number S of draws for "joint" and "token"; an ensemble uses its members instead.
        seed: seed of the draws.
        batch_size: requests per forward pass, each of S rows.
        max_batch_size: ignored; lm-eval passes it to every model.
        max_length: limit in tokens, above which a context loses its beginning; by default the language
            model's own limit.
        device: device to run on; by default the run's own, or the CPU for a language model.
        backbone: current location of the run's language model, if it has moved.
        dtype: type of the weights of a language model without a run, by default float32.
        law: old name of `predictive`.

    Raises:
        ConfigError: the run does not support `predictive`, or a setting is out of range.
        CheckpointError: the run cannot be read.
        BackboneError: the language model cannot be read, or has no tokenizer.
    """

    def __init__(
        self,
        run: str | Path | System,
        predictive: PredictiveName = "joint",
        samples: int = 10,
        seed: int = 0,
        *,
        batch_size: int | str | None = 8,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        device: str | None = None,
        backbone: str | None = None,
        dtype: str | None = None,
        law: PredictiveName | None = None,
    ) -> None:
        if law is not None:
            warn_renamed("law", "predictive")
            predictive = law
        check_choice("predictive", predictive, PredictiveName)
        size = _checked_size(batch_size)
        system, held = _loaded(run, predictive, device=device, backbone=backbone, dtype=dtype)
        check_predictive(system, predictive, samples)
        if max_length is not None:
            held.check_room(max_length, "max_length", "lower it")
        if held.tokenizer is None:
            raise ConfigError(f"The language model of {run} has no tokenizer: give a model with a tokenizer.")
        self.system, self.predictive, self.samples, self.seed = system, predictive, samples, seed
        self.run = str(held.name if isinstance(run, System) else run)
        self.truncated = 0  # requests so far whose context lost its beginning
        with _unwarned():  # HFLM warns when it gets a loaded model
            super().__init__(
                pretrained=held.lm,
                tokenizer=copy.deepcopy(held.tokenizer),  # HFLM may add a padding token
                batch_size=size,
                max_length=max_length or held.context,
                softmax_dtype="float32",
            )

    def get_model_info(self) -> Json:
        """Return the facts about the model that lm-eval adds to its results."""
        return {
            "bara_pyro": __version__,
            "run": self.run,
            "method": None if self.system is None else self.system.config.method.name,
            "predictive": self.predictive,
            "samples": self.samples if self.predictive in DRAWN else None,
            "seed": self.seed if self.predictive in DRAWN else None,
            "model_num_parameters": self._model.num_parameters(),
            "model_dtype": str(self._model.dtype),
        }

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        for request in requests:
            self._check(request)
        if self.predictive in DRAWN:
            return self._drawn(requests, override_bs or self.batch_size, quiet=disable_tqdm)
        with self._adapted():
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Encode contexts as `HFLM` does, and count those that lose their beginning."""
        ids, mask = super().tok_batch_encode(strings, padding_side, None, truncation)
        last = slice(-(left_truncate_len or 0), None)
        self.truncated += int((mask.sum(-1) > mask[:, last].sum(-1)).sum())
        return ids[:, last], mask[:, last]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as text, with its last message left open if no prompt is added.

        If the template rejects a message or drops part of it, this raises a `DataError`; `HFLM` drops a
        system message.
        """
        what, options = "the conversation", self.chat_template_args
        if add_generation_prompt:
            return templates.written(chat_history, self.tokenizer, what, options).given
        *before, last = chat_history
        texts = templates.written(before, self.tokenizer, what, options, last)
        return texts.whole.removesuffix(texts.tail)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return texts that continue the contexts; see the class for `predictive`.

        Raises:
            ConfigError: a request wants more tokens than the language model supports, or, under "joint" and
                "token", has settings that `settings_of` refuses.
            DataError: under "joint" and "token", a context has no tokens.
        """
        for request in requests:
            most_tokens(request.args[1], self.max_gen_toks, self.max_length)
        if self.predictive in DRAWN:
            return self._written(requests, quiet=disable_tqdm)
        with self._adapted():
            return super().generate_until(requests, disable_tqdm)

    def _written(self, requests: Sequence[Instance], *, quiet: bool) -> list[str]:
        """Continue contexts under draws of the posterior."""
        system = self._drawn_from()
        eos = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        needed: list[Request] = []
        known: dict[int, Request] = {}
        numbers: Counter[int] = Counter()
        for request in requests:
            which = id(request)  # repeats of a request are the same object
            if which not in known:
                settings = settings_of(request.args[1], self.max_gen_toks, eos)
                most = most_tokens(request.args[1], self.max_gen_toks, self.max_length)
                prompt = self._prompt(request.args[0], most, str(len(known)))
                known[which] = Request(prompt, 0, settings)
            needed.append(replace(known[which], number=numbers[which]))
            numbers[which] += 1
        written: dict[int, str] = {}
        with tqdm(total=len(requests), disable=quiet, desc=f"{self.predictive}, text of a draw") as bar:
            for place, text in generated_texts(system, needed, seed=self.seed, size=self.batch_size):
                written[place] = text
                self.cache_hook.add_partial("generate_until", requests[place].args, text)
                bar.update()
        return [written[place] for place in range(len(requests))]

    def _prompt(self, context: str, new_tokens: int, name: str) -> Prompt:
        """Return a context as `HFLM` reads it, cut at the left to leave room for the text."""
        room = self.max_length - new_tokens
        [tokens], _ = self.tok_batch_encode([context], left_truncate_len=room, truncation=self.truncation)
        if not len(tokens):
            raise DataError(f"The context {context!r} has no tokens: give at least one token.")
        return Prompt(tuple(map(int, tokens)), name)

    def _adapted(self) -> AbstractContextManager[object]:
        """Attach the adapters to the language model, at their posterior mean."""
        if self.predictive == "base" or self.system is None:
            return nullcontext()
        return attached(self.system)

    def _drawn_from(self) -> System:
        if self.system is None:
            raise ConfigError(f"predictive={self.predictive!r} needs a run: choose base.")
        return self.system

    def _check(self, request: Encoded) -> None:
        texts, context, continuation = request
        if not context or not 0 < len(continuation) <= self.max_length:
            part, size = ("continuation", len(continuation)) if context else ("context", 0)
            raise DataError(
                f"The {part} of {texts!r} has {size} tokens: give 1 to {self.max_length}, the "
                "language model's limit."
            )
        self.truncated += len(context) + len(continuation) > self.max_length + 1

    def _drawn(self, requests: Sequence[Encoded], size: int, *, quiet: bool) -> list[tuple[float, bool]]:
        """Score requests under the draws, the longest first, so that memory runs out early if at all."""
        system = self._drawn_from()
        texts = [context + continuation for _, context, continuation in requests]
        order = sorted(range(len(requests)), key=lambda i: (-len(texts[i]), texts[i]))
        by_place: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(requests), disable=quiet, desc=f"{self.predictive}, {self.samples} draws") as bar:
            for start in range(0, len(order), size):
                chunk = order[start : start + size]
                replies = [_reply(requests[i], self.max_length) for i in chunk]
                scores = log_likelihoods(
                    system, replies, self.predictive, samples=self.samples, seed=self.seed
                )
                for i, score in zip(chunk, scores, strict=True):
                    by_place[i] = score
                    if requests[i][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[i][0], score)
                bar.update(len(chunk))
        return [by_place[i] for i in range(len(requests))]


def _reply(request: Encoded, max_length: int) -> EncodedReply:
    """Return a request's tokens, cut at the left as in `HFLM`; its id is a hash of the whole context."""
    _, context, continuation = request
    tokens = (context + continuation)[-(max_length + 1) :][: -len(continuation)]
    name = hashlib.sha256(",".join(map(str, context)).encode()).hexdigest()
    return EncodedReply(tuple(tokens), tuple(continuation), name)


def _loaded(
    run: str | Path | System, predictive: str, *, device: str | None, backbone: str | None, dtype: str | None
) -> tuple[System | None, Backbone]:
    """Return a run and its language model, or None and a language model."""
    bare = not isinstance(run, System) and predictive == "base" and not is_run(Path(run))
    if dtype is not None and not bare:
        raise ConfigError(f"dtype={dtype!r} does not apply to a run, which has its own type: leave it out.")
    if bare:
        if backbone is not None:
            raise ConfigError(
                f"{run} is a language model already, and {backbone} is another: leave one of them out."
            )
        return None, load_backbone(str(run), dtype=dtype or "float32", device=find_device(device or "cpu"))
    if isinstance(run, System):
        if device is not None or backbone is not None:
            raise ConfigError("A system is already loaded: leave out device and backbone.")
        return run, run.backbone
    system = load_system(Path(run), backbone=backbone, device=device, with_rows=False)
    return system, system.backbone


def _checked_size(batch_size: int | str | None) -> int:
    """Return the batch size as an integer; lm-eval's command line passes it as text."""
    try:
        size = int(8 if batch_size is None else batch_size)
    except ValueError:
        size = 0
    if size < 1:
        raise ConfigError(f"batch_size={batch_size!r} is not a positive whole number: give 1 or more.")
    return size


@contextmanager
def _unwarned() -> Iterator[None]:
    logger = logging.getLogger("lm_eval.models.huggingface")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
