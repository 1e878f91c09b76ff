"""What the sections of the configuration have in common."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def _name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError("expected a name of letters, digits, _, - and .")
    return name


Name = Annotated[str, AfterValidator(_name)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
