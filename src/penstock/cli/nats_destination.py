"""The destination of type `nats` that a command is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.consumer import ConsumerAccess
    from penstock.destinations.nats.options import NatsOptions


def nats_options(config: Config, name: str | None) -> NatsOptions:
    """Return the keys of the only one, or of the one of this name."""
    from penstock.destinations.nats.options import NatsOptions
    from penstock.model.errors import ConfigError

    chosen = [each for each in config.destinations if each.type == "nats" and name in (None, each.name)]
    if len(chosen) != 1:
        names = ", ".join(each.name for each in config.destinations if each.type == "nats") or "none"
        raise ConfigError(
            "expected one destination of type nats", remedy=f"Name it with --destination; there is {names}"
        )
    return chosen[0].settings(NatsOptions)


def consumer_access(options: NatsOptions) -> ConsumerAccess:
    """Return how consumers reach what the destination publishes. With secrets in it: not for any output."""
    from penstock.consumer import ConsumerAccess, TlsFiles

    access, tls = options.access(), options.tls
    return ConsumerAccess(
        servers=access.servers,
        user=access.user,
        password=access.password,
        token=access.token,
        creds_file=options.creds_file,
        nkey_file=options.nkey_file,
        tls=TlsFiles(tls.ca_file, tls.cert_file, tls.key_file) if tls else None,
        stream=options.stream,
        init_stream=options.init_stream,
        schema_bucket=options.schema_bucket,
        encoding=options.encoding,
    )
