"""Render untrusted chat templates in a separate process, within limits."""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

from jinja2 import TemplateError

from bara_pyro.untrusted.limits import limit_memory

MEMORY = 2**29  # most bytes for a template
SECONDS = 10.0  # time limit for one conversation; most templates take a millisecond
STARTING = 300.0  # time limit in seconds for starting the process on a busy machine
ENDLESS = "it does not end, or takes all memory"
MOST_TEMPLATE = 2**20  # most characters of a template


class TemplateRenderer:
    """Renders templates in a process that is started when needed, and again after it was killed.

    Args:
        seconds: time limit for one conversation.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._endless: set[str] = set()
        atexit.register(self.close)

    def render(
        self, template: str, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], **how: Any
    ) -> str:
        """Return the output of a template for the messages of one conversation.

        Args:
            template: the template.
            messages: messages of one conversation.
            options: further variables of the template, such as special tokens.
            how: further arguments of `transformers.utils.chat_template_utils.render_jinja_template`.

        Raises:
            TemplateError: the template refuses the messages, takes too long or too much memory, or writes
                too much.
        """
        if len(template) > MOST_TEMPLATE:
            raise TemplateError(
                f"it has {len(template):,} characters, more than the limit of {MOST_TEMPLATE:,}"
            )
        if template in self._endless:
            raise TemplateError(ENDLESS)
        request = {"messages": [*messages], "options": {**options}, "how": {**how, "chat_template": template}}
        with self._lock:
            line = self._asked(json.dumps(request, default=_told).encode() + b"\n")
        if line is None:
            self._endless.add(template)
            raise TemplateError(ENDLESS)
        answer = json.loads(line)
        if "error" in answer:
            raise TemplateError(answer["error"])
        return str(answer["text"])

    def _asked(self, request: bytes) -> bytes | None:
        """Return the process's answer; None if there is none in time."""
        process = self._started()
        to = cast(IO[bytes], process.stdin)
        try:
            to.write(request)
            to.flush()
        except BrokenPipeError:
            self.close()
            return None
        return self._line(process, self.seconds)

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(  # noqa: S603 - a file of ours
                [sys.executable, "-P", str(Path(__file__).with_name("rendering.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must only reach the parent
            )
            if self._line(self._process, STARTING) is None:
                raise TemplateError("the process that renders it does not start")
            limit_memory(self._process, MEMORY)
        return self._process

    def _line(self, process: "subprocess.Popen[bytes]", seconds: float) -> bytes | None:
        """Return the next line of a process; None if it has ended, or was killed after the time limit."""
        answers = cast(IO[bytes], process.stdout)
        alarm = threading.Timer(seconds, process.kill)
        alarm.start()
        try:
            line = answers.readline()
        finally:
            alarm.cancel()
        if not line:
            self.close()
        return line or None

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(BrokenPipeError):
                process.communicate()


def _told(value: object) -> str:
    """Return a placeholder for a value that JSON cannot hold, in transformers' form."""
    return f"<{type(value).__name__}>"


@cache
def _renderer(process: int) -> TemplateRenderer:
    """Return the renderer of a process; processes that shared one would read each other's answers."""
    return TemplateRenderer()


def rendered(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], *, opened: bool
) -> str:
    """Return messages as a tokenizer's chat template writes them, with the assistant's turn `opened` or not.

    `options` are `tools`, `documents` and further variables of the template. Errors are those of `render`.
    """
    from transformers import PreTrainedTokenizerBase

    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        # This tokenizer formats chats in its own code, without a template.
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, **({"add_generation_prompt": True} if opened else {}), **options
            )
        )
    beside = dict(options)
    how = {name: beside.pop(name, None) for name in ("tools", "documents")}
    template = tokenizer.get_chat_template(None, how["tools"])
    plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
    beside = {**tokenizer.special_tokens_map, **beside}
    return _renderer(os.getpid()).render(template, plain, beside, add_generation_prompt=opened, **how)
