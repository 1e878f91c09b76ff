"""The configuration file: read, overridden from the environment, checked, with its secrets resolved."""

from penstock.config.file import load
from penstock.config.models import Config, DestinationConfig, SourceConfig
from penstock.config.tables import TablesConfig

__all__ = ["Config", "DestinationConfig", "SourceConfig", "TablesConfig", "load"]
