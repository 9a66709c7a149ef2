"""A process of its own that renders chat templates: started by `templates.py`, never imported.

A template is a program of somebody else's, in Jinja's sandbox: it can touch nothing, but it can take all
memory and never end. Whoever started this process limits its memory, and ends it.
"""

import json
import sys

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

MOST_CHARACTERS = 2**24  # that it may write


def answer(request: dict) -> dict:
    """Return the text of a template, or what it says against the messages."""
    try:
        [text] = render_jinja_template([request["messages"]], **request["how"], **request["options"])[0]
    except MemoryError:
        return {"error": "it takes too much memory"}
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
    sys.stdout.write("null\n")  # ready
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
