"""Commands of `bara`, each in a fork of this process, which has imported what they need once.

Run as a program by `test_plugin.py`: of each line of its input, the arguments, a folder to work in and two
files for what is printed, it writes the exit code.
"""

import json
import os
import runpy
import sys
import traceback

import transformers.models.llama.modeling_llama  # noqa: F401

import bara_pyro.runs.evaluate
import bara_pyro.runs.train  # noqa: F401


def command(arguments: list[str], cwd: str, out: str, err: str) -> int:
    """Run one as `python -m bara_pyro.cli.app` would."""
    os.chdir(cwd)
    for stream, file in ((sys.stdout, out), (sys.stderr, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    sys.path[0] = cwd
    sys.argv = ["bara", *arguments]
    try:
        runpy.run_module("bara_pyro.cli.app", run_name="__main__", alter_sys=True)
    except SystemExit as stopped:
        return int(stopped.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = command(**json.loads(line))
            except Exception:  # noqa: BLE001 - what a program prints at its end
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
