"""The configuration file as models: one class for each section, one field for each key.

A field's description is its line in docs/configuration.md. Unknown keys are errors everywhere but in a
destination, whose type decides what else it takes, and in `connection`, which takes whatever libpq does.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from penstock.config.connection import ServerConfig, secret_from, wrong
from penstock.config.destination_options import MARKER_PREFIX, Options
from penstock.config.destinations import BatchControl, DestinationConfig
from penstock.config.mapping import Decisions
from penstock.config.quantities import Megabytes, Seconds, Whole
from penstock.config.section import Name, Section
from penstock.config.tables import TablesConfig
from penstock.model.errors import ConfigError
from penstock.model.network import is_loopback

_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})


def _slot_name(name: str) -> str:
    if not _SLOT_NAME.fullmatch(name):
        raise ValueError("expected lower-case letters, digits and _, at most 63 of them")
    return name


def _on_or_off(value: object) -> object:
    """YAML reads `on` and `off` as booleans."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


SlotName = Annotated[
    str,
    AfterValidator(_slot_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_SLOT_NAME.pattern}$"}),
]
OnOff = Annotated[
    Literal["on", "off", "auto"],
    BeforeValidator(_on_or_off),
    WithJsonSchema({"enum": ["on", "off", "auto", True, False]}),
]


class ReplicationConfig(Section):
    slot_name: SlotName | None = Field(
        default=None,
        description="The replication slot. Default: `penstock_<pipeline>_<source>`, with a checksum of the "
        "two behind it if they have more in them than small letters and digits",
    )
    publication_name: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        default=None, description="The publication. Default: the slot's name"
    )
    create_publication: bool = Field(
        default=True,
        description="Create the publication and keep it in step with `tables`, its options too; if false, "
        "use it as it is: it has to publish inserts, updates, deletes and truncates",
    )
    on_slot_lost: Literal["error", "resync"] = Field(
        default="error",
        description="When the slot has lost changes: `error` stops, `resync` copies the tables anew",
    )
    streaming: bool = Field(
        default=True, description="Let the server send large transactions while they are still in progress"
    )
    heartbeat: Seconds = Field(
        default=10,
        description="How often to write a heartbeat to the WAL, so that an idle slot moves; 0: never",
    )
    failover: bool = Field(
        default=False, description="Make the slot one that standbys synchronise (PostgreSQL 17 and later)"
    )


class SourceConfig(ServerConfig):
    name: Name = Field(description="The source's name, and the `sid` of its rows where sources meet")
    replication: ReplicationConfig = Field(default=ReplicationConfig(), description="Slot and publication")
    tables: TablesConfig = Field(default_factory=TablesConfig, description="Which tables")
    ddl_capture: OnOff = Field(
        default="auto",
        description="Record schema changes by event triggers; `auto`: where the role may create them",
    )
    startup_mode: Literal["auto", "force_reload", "streaming_only"] = Field(
        default="auto",
        description="`auto` copies what was not copied yet; `force_reload` all, `streaming_only` nothing",
    )

    _pipeline: str = PrivateAttr("")

    @property
    def slot_name(self) -> str:
        return self.replication.slot_name or default_slot_name(self._pipeline, self.name)

    @property
    def publication_name(self) -> str:
        return self.replication.publication_name or self.slot_name


class CopyConfig(Section):
    workers: Whole = Field(default=4, gt=0, le=1000, description="Tables copied at once, smallest first")
    partition_bytes: Megabytes = Field(
        default=64_000_000,
        alias="partition_mb",
        description="Size of the part of a table that one task copies",
    )
    batch_rows: Whole = Field(
        default=10_000,
        gt=0,
        le=10_000_000,
        description="Rows that a copy reads before it writes them; fewer (120 kB) where they are long",
    )


class SpoolConfig(Section):
    path: Path = Field(
        default=Path(".penstock/spool"),
        description="Folder of the spools: of each source `<pipeline>/<source>` below it",
    )
    ack: Literal["destination", "spool"] = Field(
        default="destination",
        description="The slot follows the slowest `destination`, or the `spool` where that is durable enough",
    )


class StateConfig(Section):
    url: SecretStr = Field(
        default=SecretStr("sqlite:///.penstock/state.db"),
        description="The store: `sqlite:///…` or `postgresql://…`",
    )


def _setting(value: object) -> object:
    """Spark's settings are text: `true` and `200` need no quotes in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class SparkConfig(Section):
    master: str = Field(default="local[*]", description="Spark's master")
    conf: dict[str, Annotated[str, BeforeValidator(_setting), _SCALAR]] = Field(
        default={}, description="Spark's settings", repr=False
    )


class MonitoringConfig(Section):
    enabled: bool = Field(default=True, description="Whether `penstock run` serves HTTP")
    host: str = Field(default="127.0.0.1", description="Address that the HTTP server listens on")
    port: Whole = Field(default=8080, ge=0, le=65535, description="Its port; 0: any free one")
    token_env: str | None = Field(
        default=None,
        description="Environment variable that holds the bearer token, which requests for a change then "
        "need; on an address that others reach, all do",
    )

    _token: str | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _resolve_token(self, info: ValidationInfo) -> MonitoringConfig:
        if self.token_env:
            self._token = secret_from(info, self.token_env, "token_env")
        elif self.enabled and not is_loopback(self.host):
            raise wrong("expected token_env as well, where others can reach the server", "host")
        return self

    @property
    def token(self) -> str | None:
        return self._token


class RetryConfig(Section):
    initial: Seconds = Field(default=1, description="Pause before the first retry; it doubles")
    max: Seconds = Field(default=60, description="Longest pause")
    attempts: Whole = Field(
        default=5, ge=0, le=1_000_000, description="Retries before a table is left `errored`"
    )


class Config(Section):
    pipeline: Name = Field(description="The pipeline's name")
    sources: tuple[SourceConfig, ...] = Field(
        description="The servers to capture, one or many", json_schema_extra={"minItems": 1}
    )
    destinations: tuple[DestinationConfig, ...] = Field(
        default=(), description="Where changes go; each destination follows at its own pace"
    )
    batch_control: BatchControl = Field(default=BatchControl(), description="When a batch is complete")
    initial_copy: CopyConfig = Field(
        default=CopyConfig(), alias="copy", description="The copy of whole tables"
    )
    spool: SpoolConfig = Field(
        default=SpoolConfig(), description="Files in which changes wait for their destinations"
    )
    state: StateConfig = Field(
        default=StateConfig(), description="Database that holds phases, schemas and progress"
    )
    spark: SparkConfig = Field(default=SparkConfig(), description="The engine")
    monitoring: MonitoringConfig = Field(
        default=MonitoringConfig(),
        description="The HTTP server: dashboard, probes, metrics, requests",
    )
    retry: RetryConfig = Field(default=RetryConfig(), description="After an error that may pass")
    mapping: Literal["file", "database"] = Field(
        default="file",
        description="Who decides which tables are captured, and where and as what they arrive: this `file` "
        "alone, or what people decide of single tables (dashboard, API, `penstock map`) before it, kept in "
        "the state store, the `database`",
    )

    _withheld: frozenset[str] = PrivateAttr(frozenset())

    @property
    def withheld(self) -> frozenset[str]:
        """Variables of the environment that hold a secret, or may, since they set a key. Their values are in
        this configuration: a process that gets what it needs from us does not need them."""
        return self._withheld

    def source(self, name: str | None = None) -> SourceConfig:
        """Return the source of that name, without a name the only one; raise if there is none such."""
        matching = [source for source in self.sources if name in (None, source.name)]
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(source.name for source in self.sources)
        raise ConfigError(f"the source must be one of {names}{f', not {name}' if name else ''}")

    def decide(self, decisions: Decisions) -> None:
        """Let these hold from now on, before what the file says. Whoever has the configuration sees it."""
        for source in self.sources:
            source.tables._decided = {
                name: decision.captured
                for (of, name), decision in decisions.items()
                if of == source.name and decision.captured is not None
            }
        for destination in self.destinations:
            destination._decided = {
                table: decision.placings[destination.name]
                for table, decision in decisions.items()
                if destination.name in decision.placings
            }
            destination._withdrawn = frozenset(
                name for (_, name), decision in decisions.items() if decision.captured is False
            )

    def under(self, decisions: Decisions) -> Config:
        """Return a configuration of its own under which these hold; this one stays as it is."""
        sources = (
            source.model_copy(update={"tables": source.tables.model_copy()}) for source in self.sources
        )
        destinations = (destination.model_copy() for destination in self.destinations)
        config = self.model_copy(update={"sources": tuple(sources), "destinations": tuple(destinations)})
        config.decide(decisions)
        return config

    def marker_for(self, source: SourceConfig) -> str | None:
        """How markers of reloads begin, if the source is to record its schema changes; None: it is not."""
        options = [destination.settings(Options) for destination in self.destinations]
        prefixes = [settings.marker_prefix for settings in options if settings.marker_prefix]
        if source.ddl_capture == "off" or (source.ddl_capture == "auto" and not prefixes):
            return None
        return prefixes[0] if prefixes else MARKER_PREFIX

    @model_validator(mode="after")
    def _names(self) -> Config:
        if not self.sources:
            raise wrong("expected at least one source", "sources")
        for section, named in (("sources", self.sources), ("destinations", self.destinations)):
            names = [
                entry.name.casefold() for entry in named
            ]  # folders have these names, and some disks ignore case
            for place, name in enumerate(names):
                if name in names[:place]:
                    raise wrong(
                        f"expected another name, {named[place].name} is taken", section, place, "name"
                    )
        self._fit_destinations()
        slots: set[tuple[str, str]] = set()
        for place, source in enumerate(self.sources):
            source._pipeline = self.pipeline
            slot = source.conninfo(), source.slot_name
            if slot in slots:
                message = f"expected a slot_name of its own, {source.slot_name} is taken on this server"
                raise wrong(message, "sources", place, "replication", "slot_name")
            slots.add(slot)
        return self

    def _fit_destinations(self) -> None:
        """Refuse what does not go together; keep the schemas that destinations have at sources from being
        captured."""
        schemas: list[str] = []
        for place, destination in enumerate(self.destinations):
            options = destination.settings(Options)
            for reason, key in options.misfits(destination.tables, len(self.sources), schemas):
                raise wrong(reason, "destinations", place, *key)
            schemas += [options.schema_at_sources] if options.schema_at_sources else []
        for source in self.sources:
            source.tables._registries = frozenset(schemas)


def default_slot_name(pipeline: str, source: str) -> str:
    """`penstock_<pipeline>_<source>` in what PostgreSQL allows. Where other names would come to the same, or
    to too much, a checksum of the two parts them: `a` and `b_c` from `a_b` and `c`, `a.b` from `a-b`."""
    wanted = re.sub(r"[^a-z0-9_]", "_", f"penstock_{pipeline}_{source}".lower())
    if re.fullmatch(r"[a-z0-9]+/[a-z0-9]+", f"{pipeline}/{source}") and len(wanted) <= 63:
        return wanted
    return f"{wanted[:54]}_{hashlib.sha256(f'{pipeline}/{source}'.encode()).hexdigest()[:8]}"
