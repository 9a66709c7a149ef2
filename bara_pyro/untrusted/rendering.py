"""A process of its own that renders chat templates: started by `templates.py`, never imported.

A template is a program of somebody else's, in Jinja's sandbox: it can touch nothing, but it can take all
memory and never end. Here its memory has a limit, and whoever started the process ends it.
"""

import json
import sys

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

MEMORY = 2**29  # bytes that a template may take
MOST_CHARACTERS = 2**24  # that it may write


def limit_memory() -> None:
    """Let this process take so much more memory than it has; where the system knows no such limit, any."""
    try:
        import resource
        from pathlib import Path

        has = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY, has + MEMORY))
    except (ImportError, OSError, ValueError):
        pass


def answer(request: dict) -> dict:
    """Return the text of a template, or what it says against the messages."""
    try:
        [text] = render_jinja_template([request["messages"]], **request["how"], **request["options"])[0]
    except MemoryError:
        return {"error": f"it takes more than {MEMORY // 2**20} MiB of memory"}
    # Its own words, or Python's over messages of a form that it does not expect.
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        return {"error": str(error)[:2000] or type(error).__name__}
    except RecursionError:
        return {"error": "it calls itself too often"}
    if len(text) > MOST_CHARACTERS:
        return {"error": f"it writes more than {MOST_CHARACTERS:,} characters"}
    return {"text": text}


def main() -> None:
    """Answer requests, one line of JSON each, until there are no more."""
    limit_memory()
    sys.stdout.write("null\n")  # ready
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
