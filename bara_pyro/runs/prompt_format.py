"""The prompt format of a run, for programs that send prompts themselves: PEFT, vLLM and other servers."""

from bara_pyro.data import load_questions, prompt_text
from bara_pyro.data.schemas import unlisted
from bara_pyro.data.tokens import front_ids
from bara_pyro.runs.rows import longest
from bara_pyro.runs.system import System, require_answers
from bara_pyro.types import Json


def prompt_format(system: System) -> Json:
    """Return the prompt to send to a fitted system's language model, and how to read the answer.

    Args:
        system: fitted, with a fixed set of answers.

    Returns:
        A dictionary with these keys:

        - `prompt`: the text to send. For a run on a file it has `{text}` instead of the row's text, and
          `{context}`, `{option 1}`, `{option 2}`, .. if rows have these; for a known task it is the prompt of
          one of its rows, as an example.
        - `front_tokens`: ids that the tokenizer puts in front of the prompt; none follow it.
        - `answers`: in class order, the `answer` that follows the prompt, its `token` id (None if whole texts
          are scored), and its `class`.
        - `max_length`: the most tokens of a prompt.

    Raises:
        ConfigError: the model was trained on replies.
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
