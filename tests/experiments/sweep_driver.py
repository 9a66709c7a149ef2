"""Runs a sweep in local processes, as a script does; `test_launchers.py` kills it."""

import json
import sys
from pathlib import Path

from experiments.engine.sweep import Run, sweep

if __name__ == "__main__":
    sweep([Run(settings, Path(sys.argv[2])) for settings in json.loads(sys.argv[1])], workers=2)
