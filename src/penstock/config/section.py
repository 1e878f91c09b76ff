"""What the sections of the configuration have in common."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema


def check_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError("expected a name of letters, digits, _, - and .")
    return name


# Letters of every language, as far as all that read a schema can tell them: by what they are not.
_FOR_EDITORS = {"type": "string", "pattern": r"^[^\s!-/:-@\[-^`{-~][^\s!-,/:-@\[-^`{-~]*$"}
Name = Annotated[str, AfterValidator(check_name), WithJsonSchema(_FOR_EDITORS)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
