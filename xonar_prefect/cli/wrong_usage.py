"""Says in one sentence what is missing or wrong on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cyclopts import CycloptsError
from cyclopts.exceptions import MissingArgumentError


def sentence_of(error: CycloptsError) -> str:
    """Return what was wrong: an option that is missing, or one that has no value."""
    argument = error.argument
    if type(error) is not MissingArgumentError or argument is None:
        return str(error)
    if argument.token_count()[0] != 1:
        return str(error)  # it says how many of several are missing
    command = f'Command "{" ".join(error.command_chain or ())}"'
    if error.keyword is None:
        return f"{command} needs {argument.name}, which is missing; --help tells what it is."
    follower = _after(error.keyword, error.root_input_tokens or ())
    why = (
        f"{follower!r} begins with a dash and is taken for an option" if follower else "it is last"
    )
    return f"{command} needs a value after {error.keyword}, but {why}."


def _after(option: str, tokens: Sequence[str]) -> str | None:
    """Return what follows an option that has got no value; None where nothing does."""
    pairs = pairwise(tokens)
    return next((after for token, after in pairs if token == option and after[:1] == "-"), None)
