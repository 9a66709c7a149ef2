"""How a run is asked, for programs that send prompts themselves: PEFT, vLLM and other servers."""

from bara_pyro.data import load_questions, prompt_text
from bara_pyro.data.schemas import unlisted
from bara_pyro.data.tokens import front_ids
from bara_pyro.runs.rows import longest
from bara_pyro.runs.system import System, require_answers
from bara_pyro.types import Json


def prompt_format(system: System) -> Json:
    """Return what to send to a fitted system's language model, and where its answer is read.

    Args:
        system: of answers.

    Returns:
        `prompt`: the text to send. Of a run on a file of rows it has `{text}` in place of the row's text, and
        `{context}` and `{option 1}`, `{option 2}`, .. where rows have these; of a known task it is the prompt
        of one of its rows, as which others are written. `front_tokens`: ids that the tokenizer puts before it
        (nothing follows it). `answers`: `answer` (what the model says right behind it), `token` (its id; None
        where whole texts are scored) and `class` of each, in class order. `max_length`: the most tokens of a
        prompt.

    Raises:
        ConfigError: the model learnt replies.
    """
    require_answers(system.config)
    task, whole_texts = system.task, system.config.task.labels == "texts"
    tokens = [None] * len(task.labels) if whole_texts else system.answer_ids.tolist()
    classes = task.names or task.labels
    return {
        "prompt": _prompt(system, whole_texts),
        "front_tokens": front_ids(system.backbone.tokenizer),
        "answers": [
            {"answer": answer, "token": token, "class": name}
            for answer, token, name in zip(task.labels, tokens, classes, strict=True)
        ],
        "max_length": longest(system.config, system.backbone),
    }


def _prompt(system: System, whole_texts: bool) -> str:
    task = system.task
    if task.columns is None:
        example = next(iter((*task.test, *task.validation, *task.train)))
    else:
        row: dict[str, object] = {task.columns.text: "{text}"}
        if task.columns.context:
            row[task.columns.context] = "{context}"
        if task.columns.choices and not task.names:
            row[task.columns.choices] = [f"{{option {i}}}" for i in range(1, len(task.labels) + 1)]
        [example] = load_questions([row], task)
    return prompt_text(unlisted(example) if whole_texts else example)
