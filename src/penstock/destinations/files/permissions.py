"""Who may read delivered files on a disk: `mode` and `group` of the destination, whatever the umask is.

A folder has the permissions of a file, and can be entered by who may read. The base path itself, where it is
there already, is the operator's and stays as it is; so does a folder below it that belongs to somebody else.
"""

from __future__ import annotations

import grp
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from penstock.destinations.files.options import FilesOptions
from penstock.model.errors import ConfigError

_ALL = 0o777
_NONE = -1
"""`chown` leaves what is given as this."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Travels to Spark's executors: a group is looked up where it is given."""

    mode: int = 0o640
    group: str | int | None = None

    @classmethod
    def of(cls, options: FilesOptions) -> Permissions:
        return cls(int(options.mode, 8), options.group)

    @property
    def folder_mode(self) -> int:
        return self.mode | (self.mode & 0o444) >> 2

    def find_group(self) -> int:
        """Return the group's number; raise unless we may give files to it."""
        if self.group is None:
            return _NONE
        try:
            number = grp.getgrnam(str(self.group)).gr_gid
        except KeyError:
            if not str(self.group).isdecimal():
                message = f"there is no group {self.group} on this machine"
                raise ConfigError(message, remedy="Make it, or name another one: `group`") from None
            number = int(self.group)
        if os.geteuid() != 0 and number not in {os.getegid(), *os.getgroups()}:
            raise ConfigError(
                f"the user that Penstock runs as is not in the group {self.group}",
                remedy="Add it to the group (usermod -a -G) and start Penstock anew, or name another `group`",
            )
        return number

    def opener(self, path: str, flags: int) -> int:
        """For `open(…, opener=…)`: a new file is for its owner alone until its group and mode are set."""
        handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            if self.group is not None:
                os.fchown(handle, _NONE, self.find_group())
            os.fchmod(handle, self.mode)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def make_base(self, base: Path) -> None:
        """Make the base path, and what is missing above it."""
        missing = [place for place in (base, *base.parents) if not place.exists()]
        for place in reversed(missing):
            place.mkdir(0o700, exist_ok=True)
            self._settle(place)

    def make_folder(self, folder: Path, base: Path) -> None:
        """Make a folder below the base path, with those in between. A crash before one of them has its mode
        is made good by the next call."""
        for name in (*reversed(folder.relative_to(base).parents), folder.relative_to(base)):
            if name.parts:
                (base / name).mkdir(0o700, exist_ok=True)
                self._settle(base / name)

    def _settle(self, folder: Path) -> None:
        status = folder.stat()
        if status.st_uid != os.geteuid():
            return
        group = self.find_group()
        if group not in (_NONE, status.st_gid):
            os.chown(folder, _NONE, group)
        if status.st_mode & _ALL != self.folder_mode:
            folder.chmod(stat.S_IMODE(status.st_mode) & ~_ALL | self.folder_mode)
