"""Run the command line with `python -m bara_pyro`, for launchers that need a module."""

from bara_pyro.cli.app import main

if __name__ == "__main__":
    main()
