"""Durations as people say them."""


def spoken(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours; below ten hours with two digits at most.

    Examples:
        >>> from bara_pyro.durations import spoken
        >>> spoken(4.2), spoken(200), spoken(9000), spoken(360_000)
        ('4 s', '3 min', '2.5 h', '100 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.2g} h" if hours < 10 else f"{hours:.0f} h"
