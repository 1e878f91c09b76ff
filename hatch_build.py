"""What the wheel's metadata says of the README and of addresses.

The README's links are relative: right in the repository, and dead on an index page. Where the build is told
the repository's address (PENSTOCK_REPOSITORY=https://…), they lead there, to the version's tag, and the
project has its addresses; otherwise a link is the name of the file that it leads to.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)")


def rewritten(text: str, tag: str, repository: str | None) -> str:
    """Return the README for a page that is not the repository's."""
    if repository:
        return RELATIVE_LINK.sub(rf"[\1]({repository}/blob/{tag}/\2)", text)
    # A link whose text is its file needs it once.
    return RELATIVE_LINK.sub(
        lambda link: f"`{link[2]}`" if link[1] == link[2] else f"{link[1]} (`{link[2]}`)", text
    )


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("PENSTOCK_REPOSITORY", "").rstrip("/") or None
        tag = f"v{metadata['version']}"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": rewritten(text, tag, repository)}
        if repository:
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{repository}/tree/{tag}/docs",
                "Changes": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
                "Security": f"{repository}/blob/{tag}/SECURITY.md",
            }
