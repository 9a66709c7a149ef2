"""Chat templates that somebody else may have written: rendered in a process of their own, within limits."""

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

MEMORY = 2**29  # bytes that a template may take
SECONDS = 10.0  # that a template may take for one conversation; a usual one takes a millisecond
STARTING = 300.0  # that the process may take to start, beside others on a slow disk
ENDLESS = "it does not end, or takes all memory"
MOST_TEMPLATE = 2**20  # characters of a template


class TemplateRenderer:
    """A process that renders templates, started when it is needed and again where it was ended.

    Args:
        seconds: that a template may take.
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
        """Return what a template writes of messages.

        Args:
            template: the template.
            messages: of one conversation.
            options: what the template may read beside them, its special tokens for example.
            how: further arguments of `transformers.utils.chat_template_utils.render_jinja_template`.

        Raises:
            TemplateError: it refuses them, takes too long or too much memory, or writes too much.
        """
        if len(template) > MOST_TEMPLATE:
            raise TemplateError(
                f"it has {len(template):,} characters, and at most {MOST_TEMPLATE:,} are read"
            )
        if template in self._endless:
            raise TemplateError(ENDLESS)
        request = {"messages": [*messages], "options": {**options}, "how": {**how, "chat_template": template}}
        with self._lock:
            line = self._asked(json.dumps(request, default=_told).encode() + b"\n")
        if line is None:
            self._endless.add(template)
            raise TemplateError(ENDLESS)
        found = json.loads(line)
        if "error" in found:
            raise TemplateError(found["error"])
        return str(found["text"])

    def _asked(self, request: bytes) -> bytes | None:
        """Return the answer; None where there is none in time."""
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
                start_new_session=True,  # Ctrl-C is for whoever started it
            )
            if self._line(self._process, STARTING) is None:
                raise TemplateError("the process that renders it does not start")
            limit_memory(self._process, MEMORY)
        return self._process

    def _line(self, process: "subprocess.Popen[bytes]", seconds: float) -> bytes | None:
        """Return the next line of a process; None where it has ended, or has been ended for taking long."""
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
    """Return what stands for a value that JSON does not have, as transformers puts it."""
    return f"<{type(value).__name__}>"


@cache
def _renderer(process: int) -> TemplateRenderer:
    """Return the renderer of a process: of those that share one, each would read the other's answers."""
    return TemplateRenderer()


def rendered(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], *, opened: bool
) -> str:
    """Return what a tokenizer's chat template writes of messages.

    Args:
        tokenizer: of transformers, with a chat template.
        messages: roles and contents.
        options: `tools`, `documents` and whatever else the template reads.
        opened: begin the assistant's turn behind the messages.

    Raises:
        TemplateError: see `Renderer.render`.
    """
    from transformers import PreTrainedTokenizerBase

    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        # One that writes chats by a program of its own, and no template of others.
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, **({"add_generation_prompt": True} if opened else {}), **options
            )
        )
    beside = dict(options)
    how = {name: beside.pop(name, None) for name in ("tools", "documents")}
    template = tokenizer.get_chat_template(None, how["tools"])
    told = [{key: value for key, value in message.items() if value is not None} for message in messages]
    beside = {**tokenizer.special_tokens_map, **beside}
    return _renderer(os.getpid()).render(template, told, beside, add_generation_prompt=opened, **how)
