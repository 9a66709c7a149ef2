"""Studies, figures and pages: not part of the package that is installed."""

from bara_pyro.cli.terminal import hush_libraries

hush_libraries()  # in every process of a study, before anything else is imported
