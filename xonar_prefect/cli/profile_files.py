"""Profiles in files: JSON keeps everything, CSV what simulations read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xonar_prefect.cli.command_profiles import IMPORTED_FLOW, is_of_a_command, lacking
from xonar_prefect.cli.offered_profiles import offered_profile
from xonar_prefect.core.codec import (
    profile_to_dict,
    recipe_from_dict,
    recipe_to_dict,
)
from xonar_prefect.core.identity import Recipe
from xonar_prefect.errors import FileContentError, FileUnreadableError, FileUnwritableError
from xonar_prefect.files.profiles import COLUMNS, OPTIONAL_COLUMNS, profile_of, row_of
from xonar_prefect.files.rows import read_rows

if TYPE_CHECKING:
    from xonar_prefect.store import Store, StoredProfile, Taken

_JSON_FILE = "JSON file"
_LONG_AGO_S = 0.0
"""A CSV file does not say when its profiles were published: whatever does is newer."""


def as_json(stored: StoredProfile) -> dict[str, Any]:
    """Return a stored profile as JSON values."""
    return {
        **profile_to_dict(stored.profile),
        "recipe": recipe_to_dict(stored.recipe),
        "published_at_s": stored.published_at_s,
    }


def as_csv(known: Iterable[StoredProfile]) -> str:
    """Return stored profiles as CSV with a header; flow and task are there for people."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *OPTIONAL_COLUMNS], lineterminator="\n")
    writer.writeheader()
    for each in known:
        writer.writerow(
            {**row_of(each.profile), "flow": each.recipe.flow, "task": each.recipe.task}
        )
    return text.getvalue()


def is_json(path: Path) -> bool:
    """Tell from the name of a file whether it holds JSON; else it holds CSV."""
    return path.suffix.lower() == ".json"


def write(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        FileUnwritableError: It cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileUnwritableError(path, error.strerror or str(error)) from None


def read(path: Path) -> list[StoredProfile] | dict[str, Any]:
    """Read exported profiles: JSON where the name ends in .json, else CSV.

    What `xonar profile --json` has written is returned as it is: it does not know its kind. A CSV
    file says nothing of where a key comes from: such a profile is found by its key
    alone.

    Raises:
        FileUnreadableError: The file cannot be read.
        FileContentError: It has no profiles.
    """
    from xonar_prefect.store import StoredProfile

    if is_json(path):
        return _read_json(path)
    found = []
    for row in read_rows(path, COLUMNS):
        profile = profile_of(row)
        recipe = Recipe(
            flow=row.optional_text("flow") or IMPORTED_FLOW,
            entrypoint=None,
            task=row.optional_text("task") or profile.key,
        )
        found.append(StoredProfile(profile=profile, recipe=recipe, published_at_s=_LONG_AGO_S))
    return found


def _read_json(path: Path) -> list[StoredProfile] | dict[str, Any]:
    from xonar_prefect.store import StoredProfile

    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise FileContentError(path, error.lineno, None, f"is no JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        cause = f"it is not text in UTF-8: {error.reason}"
        raise FileUnreadableError(path, cause, _JSON_FILE) from None
    except OSError as error:
        raise FileUnreadableError(path, error.strerror or str(error), _JSON_FILE) from None
    if is_of_a_command(values):
        return dict(values)
    if not isinstance(values, list):
        problem = "must begin a list of profiles, or one that `xonar profile --json` has written"
        if isinstance(values, dict):
            problem += f"; it lacks {', '.join(lacking(values))}"
        raise FileContentError(path, 1, None, problem)
    found = []
    for number, each in enumerate(values, start=1):
        try:
            found.append(
                StoredProfile(
                    profile=offered_profile(each),
                    recipe=recipe_from_dict(each["recipe"]),
                    published_at_s=float(each["published_at_s"]),
                )
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            cause = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            problem = f"entry {number} of the list is no profile as `export --json` writes it"
            raise FileContentError(path, 1, None, f"{problem} ({cause})") from None
    return found


def ingest(store: Store, offered: Iterable[StoredProfile]) -> dict[Taken, list[str]]:
    """Take profiles into a store; return their keys by how much was taken of them.

    What is known and newer stays, and nothing that is known is lost.
    """
    keys: dict[Taken, list[str]] = {}
    for each in offered:
        keys.setdefault(store.import_profile(each), []).append(each.profile.key)
    return keys
