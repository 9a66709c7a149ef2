"""A verdict is the test's own: no program that computes the wrong thing can make it "passed"."""

import textwrap
from dataclasses import replace

import pytest

from bara_pyro.extras.replies.sandbox import Limits, run_program, try_function

SMALL = Limits(seconds=120.0, memory=256 * 2**20)
# A value that no program computes: one that passes has read or guessed it.
EXPECTED = 8_675_309_421
TEST = f"""
def helper(value):
    return value

def check(candidate):
    assert helper(candidate(1)) == {EXPECTED}
    assert not candidate(2) != {EXPECTED} + 1
    assert candidate(3) in [{EXPECTED} + 2]
    assert abs(candidate(4) - {EXPECTED}) < 5
"""

FORGERIES = {
    "nothing": "def f(x): pass",
    "no function": "g = 1",
    "no callable": "f = 1",
    "no Python": "def f(x) return",
    "a null byte": "def f(x): return '\0'",
    "half a character": "def f(x): return '\ud800'",
    "prints": "def f(x): print('passed'); return x",
    "prints to every file": """
        import os
        lines = b'["passed", ""]\\n["value", true]\\npassed\\nOK\\n'
        for number in range(1024):
            try:
                os.write(number, lines * 100)
            except OSError:
                pass
        def f(x): return x
    """,
    "closes every file": "import os\nos.closerange(0, 1024)\ndef f(x): return x",
    "exits on import": "import sys; sys.exit(0)",
    "exits when called": "import sys\ndef f(x): sys.exit(0)",
    "ends on import": "import os; os._exit(0)",
    "ends when called": "import os\ndef f(x): os._exit(0)",
    "exits later": "import atexit\natexit.register(print, 'passed')\ndef f(x): exit(0)",
    "is replaced by another program": "import os\ndef f(x): os.execv('/usr/bin/true', ['true'])",
    "raises what a test might": "def f(x): raise StopIteration",
    "raises no exception of its own": "class Odd(BaseException): pass\ndef f(x): raise Odd",
    "raises what cannot be printed": """
        class Odd(Exception):
            def __str__(self): raise SystemExit(0)
        def f(x): raise Odd
    """,
    "equals everything": """
        class Same:
            __eq__ = __lt__ = __contains__ = lambda *_: True
            __ne__ = lambda *_: False
            __sub__ = __abs__ = __rsub__ = __iter__ = lambda self, *_: self
            __hash__ = lambda self: 0
        def f(x): return Same()
    """,
    "says it is an int": """
        class Same:
            __class__ = int
            __eq__ = lambda *_: True
        def f(x): return Same()
    """,
    "is of a class that equals every class": """
        class Meta(type):
            __eq__ = lambda *_: True
            __hash__ = lambda self: hash(int)
        class Same(metaclass=Meta):
            __eq__ = lambda *_: True
        def f(x): return Same()
    """,
    **{
        f"a {kind} that equals everything": f"""
        class Same({kind}):
            __eq__ = lambda *_: True
            __ne__ = lambda *_: False
            __sub__ = __abs__ = __getitem__ = lambda self, *_: self
            __lt__ = lambda *_: True
            __hash__ = {kind}.__hash__
        def f(x): return Same()
        """
        for kind in ("int", "float", "str", "bytes", "list", "tuple", "dict", "set", "complex")
    },
    "not a number": "def f(x): return float('nan')",
    "infinite": "def f(x): return float('inf')",
    "a generator": "def f(x): yield x",
    "a function": "def f(x): return lambda *_: True",
    "a class": "def f(x): return int",
    "a list that holds itself": "def f(x):\n    held = []\n    held.append(held)\n    return held",
    "a list a million deep": """
        def f(x):
            held = []
            for _ in range(10**6): held = [held]
            return held
    """,
    "an int of a million digits": "def f(x): return 1 << 3_400_000",
    "a text of 100 MB": "def f(x): return 'a' * 10**8",
    "patched built-ins": """
        import builtins
        builtins.AssertionError = type('Quiet', (BaseException,), {})
        builtins.abs = builtins.type = builtins.print = lambda *_, **__: True
        builtins.__build_class__ = builtins.__import__ = None
        def f(x): return x
    """,
    "patched json": """
        import json
        json.dumps = lambda *_, **__: '["passed", ""]'
        json.loads = lambda *_, **__: [[True], {}]
        def f(x): return x
    """,
    "patched output": """
        import io, sys
        sys.stdout = sys.__stdout__ = sys.stderr = io.StringIO()
        def f(x): return x
    """,
    "a patched server": """
        import __main__
        __main__.encode = lambda value: ["passed", ""]
        __main__._answer = lambda *_: ["passed", ""]
        def f(x): return x
    """,
    "half a reply": "import __main__\ndef f(x): __main__._answer = 1; return x",
    **{
        f"the reply {line!r:.30}": f"""
        import __main__
        def answer(pipe, message):
            pipe.write({line!r} + b'\\n')
            pipe.flush()
        __main__.send = answer
        def f(x): return x
        """
        for line in (
            b"", b"passed", b"[]", b"{}", b"true", b'["value"]', b'["value", {"a": 1}]',
            b'["value", ["list", 1]]',
            b'["value", ["dict", [[["list", []], 1]]]]', b'["value", ["object", []]]', b'["value", [[], []]]',
            b'["value", ["complex", ["nan", 0]]]', b'["value", ["bytes", "xy"]]', b'["passed", ""]',
            b'["raised", {"a": 1}, []]', b"\xff\xfe", b"[" * 10**5, b"9" * 10**5, b'["value", 1e999]',
        )
    },
    "an endless reply": """
        import __main__, os
        def answer(pipe, message):
            while True: os.write(pipe.fileno(), b'a' * 2**16)
        __main__.send = answer
        def f(x): return x
    """,
    "reads the test": """
        import gc, inspect, re, sys
        def everything():
            for held in gc.get_objects():
                try:
                    yield repr(held)
                except Exception:
                    pass
            frame = sys._getframe()
            while frame:
                yield repr(frame.f_globals) + repr(frame.f_locals)
                frame = frame.f_back
            yield open(sys.argv[0]).read()
        def f(x):
            for text in everything():
                for number in re.findall('[0-9]{10}', text):
                    if number.startswith('86' + '7530'):
                        return int(number) + x - 1
            raise LookupError('not there')
    """,
    "compares its result away": """
        import operator
        class Quiet(int): pass
        def f(x):
            global f
            f = lambda x: True
            return Quiet(x)
    """,
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("isolation")


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_passes(name: str) -> None:
    outcome = try_function(textwrap.dedent(FORGERIES[name]), "f", TEST, limits=replace(SMALL, seconds=2.0))
    assert not outcome.passed
    assert outcome.reason in ("wrong", "error", "timeout", "memory", "output")
    assert outcome.message.isprintable()


def test_the_right_values_pass() -> None:
    right = f"def f(x): return {EXPECTED} + x - 1"
    assert try_function(right, "f", TEST, limits=SMALL).passed


@pytest.mark.parametrize("name", ["equals everything", "reads the test", "exits on import"])
def test_in_the_process_of_the_test_they_would_pass(name: str) -> None:
    finished = run_program(f"{textwrap.dedent(FORGERIES[name])}\n{TEST}\ncheck(f)", limits=SMALL)
    assert (finished.status, finished.code) == ("ended", 0), finished.stderr


def test_a_helper_of_the_prompt_is_the_prompts_own() -> None:
    prompt = "def weigh(x):\n    return x * 2\n\ndef f(x):\n    '''Return what weighs x.'''\n"
    test = "def check(candidate):\n    assert weigh(candidate(6)) == 6 and f(4) == 2"
    cheat = "def weigh(x): return 6\ndef f(x): return 0"
    assert try_function(prompt + "    return x / 2", "f", test, prompt=prompt, limits=SMALL).passed
    assert try_function(cheat, "f", test, prompt=prompt, limits=SMALL).reason == "wrong"


VALUES = """[
    None, True, False, 0, -1, 10**40, 0.1, -0.0, 1e308, 1e-320, float("inf"), "", "a\\n\\0é\\ud800😀",
    b"", b"\\x00\\xff", 2 + 3j, [], (), {}, set(), frozenset(), [1, [2, (3, {4: [5]})]],
    {(1, "a"): {2.5}, None: frozenset({b"b"})}, [True, 1, 1.0], {1: "int", "1": "str"},
]"""


def test_values_come_back_as_they_are_with_their_types() -> None:
    test = f"""
def same(a, b):
    assert type(a) is type(b) and repr(a) == repr(b), (a, b)

def check(candidate):
    for value in {VALUES}:
        same(candidate(value), value)
        same(candidate(x=value), value)
    assert str(candidate(float("nan"))) == "nan"
"""
    outcome = try_function("def f(x): return x", "f", test, limits=SMALL)
    assert outcome.passed, outcome


def test_dictionaries_of_the_standard_library_are_plain_ones() -> None:
    program = "from collections import *\nkinds = [Counter, OrderedDict, lambda d: defaultdict(int, d)]\n"
    program += "def f(x): return kinds[x]({'a': 1})"
    test = """
def check(candidate):
    for value in map(candidate, range(3)):
        assert type(value) is dict and value == {"a": 1}
"""
    assert try_function(program, "f", test, limits=SMALL).passed


def test_a_function_keeps_its_state_and_may_print_and_return_much() -> None:
    program = "seen = []\ndef f(x):\n    print('hello', x); seen.append(x)\n    return seen * 1000"
    test = "def check(candidate):\n    for n in range(50): assert len(candidate('a' * 20)) == 1000 * (n + 1)"
    outcome = try_function(program, "f", test, limits=Limits())
    assert outcome.passed, outcome


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("def check(candidate): assert candidate(print)", "arguments cannot be sent"),
        ("def check(candidate) assert", "the problem itself does not run: SyntaxError"),
        ("tests = []", "the problem itself does not run: KeyError: 'check'"),
        ("def check(candidate):\n    import os; os._exit(3)", "the test itself ended with exit code 3"),
        ("def check(candidate):\n    import os; os.write(1, b'passed')", "the test itself ended"),
    ],
)
def test_a_test_that_does_not_run_is_an_error(test: str, said: str) -> None:
    outcome = try_function("def f(x): return x", "f", test, limits=SMALL)
    assert outcome.reason == "error"
    assert said in outcome.message


def test_a_test_that_catches_exceptions_does_not_hide_a_failed_call() -> None:
    test = "def check(candidate):\n    try:\n        candidate(1)\n    except Exception:\n        pass"
    assert try_function("def f(x): raise ValueError", "f", test, limits=SMALL).reason == "error"


def test_a_message_cannot_move_the_cursor() -> None:
    program = "def f(x): raise ValueError('\\x1b[2J\\r\\n\\u202e' + 'a' * 10**6)"
    outcome = try_function(program, "f", TEST, limits=SMALL)
    assert outcome.message.isprintable()
    assert len(outcome.message) <= 300
