"""Who may give a role the right to replicate, and how: it differs where the superuser is the provider's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Provider(StrEnum):
    SELF = "self"
    RDS = "rds"
    CLOUDSQL = "cloudsql"
    AZURE = "azure"
    SUPABASE = "supabase"


@dataclass(frozen=True, slots=True)
class Ways:
    run_by: str
    """Who runs the script."""
    decoding: str
    """How logical decoding is switched on."""
    replication: str = ""
    """What gives the right to replicate, where it is not the attribute REPLICATION; `%I` is the role."""
    triggers: str = ""
    """What is to be known of event triggers there."""
    row_security: str = ""
    """What is to be known of BYPASSRLS there."""
    parameters: bool = False
    """Whether the right to set a parameter can be granted for sure."""


_MEMBER = (
    "make the role a member of the tables' owner: policies do not concern him, unless row security is forced"
)

WAYS = {
    Provider.SELF: Ways(
        run_by="a superuser",
        decoding="wal_level = logical (a restart)",
        parameters=True,
    ),
    Provider.RDS: Ways(
        run_by="the master user, of rds_superuser, who owns the tables (or is a member of who does)",
        decoding="rds.logical_replication = 1 in the parameter group (a reboot)",
        replication="grant rds_replication to %I",
        triggers="The master user may create event triggers. Drop them before an upgrade to a major version.",
        row_security=f"If BYPASSRLS is refused, {_MEMBER}",
    ),
    Provider.CLOUDSQL: Ways(
        run_by="postgres, of cloudsqlsuperuser, who owns the tables (or is a member of who does)",
        decoding="the flag cloudsql.logical_decoding = on (a restart)",
        triggers="A member of cloudsqlsuperuser may create event triggers.",
        row_security=f"If BYPASSRLS is refused, {_MEMBER}",
    ),
    Provider.AZURE: Ways(
        run_by="the server's admin, of azure_pg_admin, who owns the tables (or is a member of who does)",
        decoding="wal_level = logical among the server parameters (a restart)",
        triggers="If event triggers are refused to the admin, use --no-triggers and ddl_capture: off.",
        row_security=f"The admin gives BYPASSRLS from PostgreSQL 16 on. Before, {_MEMBER}",
    ),
    Provider.SUPABASE: Ways(
        run_by="postgres",
        decoding="nothing: wal_level is logical. Connect directly, not through the pooler",
        triggers="Only postgres may create event triggers, and they do not fire for superusers' commands.",
    ),
}
