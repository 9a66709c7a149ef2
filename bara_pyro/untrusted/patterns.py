"""Match untrusted regular expressions with RE2, in time linear in the text."""

from collections.abc import Sequence


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that a regular expression matches completely.

    Python's `re` may take exponential time. RE2 is always linear, but has no backreferences or lookaround.

    Raises:
        ValueError: RE2 does not support the expression; the message says why.

    Examples:
        >>> from bara_pyro.untrusted.patterns import matching
        >>> matching(r".*[.](q|v)_proj", ["layers.0.q_proj", "layers.0.k_proj"])
        ['layers.0.q_proj']
        >>> matching("(a+)+b", ["a" * 10_000])
        []
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.array(["", *names], type=pa.string())
    try:
        pc.match_substring_regex(texts[:1], pattern=pattern)  # by itself: it could close the group around it
        flags = pc.match_substring_regex(texts, pattern=rf"\A(?:{pattern})\z").to_pylist()[1:]
    except ValueError as error:
        raise ValueError(str(error).removeprefix("Invalid regular expression: ")[:200]) from error
    return [name for name, matches in zip(names, flags, strict=True) if matches]
