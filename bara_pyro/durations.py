"""Durations as people say them."""


def spoken(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, with two digits at most.

    Examples:
        >>> from bara_pyro.durations import spoken
        >>> spoken(4.2), spoken(200), spoken(9000)
        ('4 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.2g} h"
