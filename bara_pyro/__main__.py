"""`python -m bara_pyro`: the command line, for launchers that take a module."""

from bara_pyro.cli.app import main

if __name__ == "__main__":
    main()
