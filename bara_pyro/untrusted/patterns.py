"""Regular expressions that somebody else may have written: matched by RE2, in time linear in the text."""

from collections.abc import Sequence


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that a regular expression matches as a whole.

    Python's own expressions may take longer than anybody waits. RE2's never do; they know neither references
    nor what stands before or behind a match.

    Raises:
        ValueError: RE2 does not know the expression; the message says why.

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
        pc.match_substring_regex(texts[:1], pattern=pattern)  # alone, or it might close the group around it
        found = pc.match_substring_regex(texts, pattern=rf"\A(?:{pattern})\z").to_pylist()[1:]
    except ValueError as error:
        raise ValueError(str(error).removeprefix("Invalid regular expression: ")[:200]) from error
    return [name for name, matches in zip(names, found, strict=True) if matches]
