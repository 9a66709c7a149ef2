"""The prompt format of a run, for programs that send prompts themselves: PEFT, vLLM and other servers."""

from bara_pyro.data import Example, load_questions, prompt_text
from bara_pyro.data.conversations import said_by_user
from bara_pyro.data.labels import unlisted, without_cue
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
        - `messages`: for a run that was trained with `chat`, the same prompt as messages, for a server that
          applies the model's chat template.
        - `front_tokens`: ids that the tokenizer puts in front of the prompt; none follow it.
        - `answers`: in class order, the `answer` that follows the prompt, its `token` id (None if whole texts
          are scored), and its `class`.
        - `text_score`: only if whole texts are scored. A text's score is the `sum` or the `mean` of the
          log-probabilities of its tokens.
        - `max_length`: the most tokens of a prompt.

    Raises:
        ConfigError: the model was trained on replies.
    """
    require_answers(system.config)
    task, whole_texts = system.task, system.config.task.labels == "texts"
    tokens = [None] * len(task.labels) if whole_texts else system.answer_ids.tolist()
    classes = task.names or task.labels
    example = unlisted(_row(system)) if whole_texts else _row(system)
    if task.chat is None:
        prompt: Json = {
            "prompt": prompt_text(example),
            "front_tokens": front_ids(system.backbone.tokenizer),
        }
    else:
        text, opening = prompt_text(without_cue(example)), system.config.task.system
        before = [] if opening is None else [{"role": "system", "content": opening}]
        prompt = {
            "prompt": f"{task.chat.before}{text}{task.chat.after}",
            "front_tokens": [],
            "messages": [*before, *said_by_user(text)],
        }
    scored = {"text_score": system.config.task.text_score} if whole_texts else {}
    return {
        **prompt,
        **scored,
        "answers": [
            {"answer": answer, "token": token, "class": name}
            for answer, token, name in zip(task.labels, tokens, classes, strict=True)
        ],
        "max_length": longest(system.config, system.backbone),
    }


def _row(system: System) -> Example:
    """Return a row with a name in place of each text, or a row of a known task."""
    task = system.task
    if task.columns is None:
        return next(iter((*task.test, *task.validation, *task.train)))
    row: dict[str, object] = {task.columns.text: "{text}"}
    if task.columns.context:
        row[task.columns.context] = "{context}"
    if task.columns.choices and not task.names:
        row[task.columns.choices] = [f"{{option {i}}}" for i in range(1, len(task.labels) + 1)]
    [example] = load_questions([row], task)
    return example
