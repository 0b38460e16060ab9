"""What a field of a pydantic class may be, in words for a person."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Path: "a path",
    str: "a text",
    dict: "names with texts",
}


def expected(field: FieldInfo) -> str:
    """Return what the field's value must be, as the end of "it must be ..."."""
    kind = _without_none(field.annotation)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(str(choice) for choice in get_args(kind))}"
    words = _WORDS.get(get_origin(kind) or kind, "something else")
    if _constraint(field, "allow_inf_nan") is False:
        words = words.replace("a number", "a finite number")
    return f"{words}{_bounds(field)}"


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(each for each in get_args(annotation) if each is not type(None))
    return annotation


def _bounds(field: FieldInfo) -> str:
    least, most = _constraint(field, "ge"), _constraint(field, "le")
    above = _constraint(field, "gt")
    if above is not None:
        return f" greater than {above:g}"
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}"
    return "" if least is None else f" of {least:g} or more"


def _constraint(field: FieldInfo, name: str) -> Any:
    found = (getattr(each, name, None) for each in field.metadata)
    return next((value for value in found if value is not None), None)
