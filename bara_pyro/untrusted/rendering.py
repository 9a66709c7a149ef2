"""Render chat templates in a separate process: started by `templates.py`, never imported.

A template is an untrusted program in Jinja's sandbox. It can access nothing, but it can use all memory or
never end, so the parent process limits this one's memory and kills it after a time limit.
"""

import json
import sys
from datetime import datetime, tzinfo

from jinja2 import TemplateError
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

MOST_CHARACTERS = 2**24  # of a template's output


class OneDay(datetime):
    """Some templates write today's date; on one day for all, a run that is resumed later has its tokens."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "OneDay":
        """Return the date that Llama 3.1's template writes by default."""
        return cls(2024, 7, 26, tzinfo=tz)


def answer(request: dict) -> dict:
    """Return the output of a template, or its error about the messages."""
    try:
        [text] = render_jinja_template([request["messages"]], **request["how"], **request["options"])[0]
    except MemoryError:
        return {"error": "it takes too much memory"}
    # The template's own error, or Python's for messages in a form that the template does not expect.
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        return {"error": str(error)[:2000] or type(error).__name__}
    except RecursionError:
        return {"error": "it calls itself too often"}
    if len(text) > MOST_CHARACTERS:
        return {"error": f"it writes more than {MOST_CHARACTERS:,} characters"}
    return {"text": text}


def main() -> None:
    """Answer requests, one line of JSON each, until stdin is closed."""
    vars(chat_template_utils)["datetime"] = OneDay  # which `strftime_now` of the templates asks
    sys.stdout.write("null\n")  # ready
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
