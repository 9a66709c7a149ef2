"""All that can be done here, by name.

python -m experiments in_distribution --seeds 3     # a study: a folder of experiments/studies
python -m experiments paper --model M --out DIR     # the tables of the paper, with its own protocol
python -m experiments intervals                     # stored comparisons again, from the stored rows
"""

import sys
from importlib import import_module

from bara_pyro.errors import ConfigError, unknown
from experiments.engine.arguments import start
from experiments.engine.results import study_names

COMMANDS = {
    "paper": "experiments.paper.command",
    "intervals": "experiments.engine.differences",
}


def main() -> None:
    """Run the command that is named first, with the rest of the arguments."""
    known = [*COMMANDS, *study_names()]
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        print("Known:", ", ".join(known))
        return
    name = sys.argv[1]
    if name not in known:
        raise ConfigError(unknown("study or command", name, known))
    sys.argv[:2] = [f"python -m experiments {name}"]
    import_module(COMMANDS.get(name, f"experiments.studies.{name}.study")).main()


if __name__ == "__main__":
    start(main)
