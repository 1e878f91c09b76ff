"""The configuration file: read, overridden from the environment, checked, with its secrets resolved."""

from penstock.config.destinations import DestinationConfig
from penstock.config.file import load
from penstock.config.models import Config, SourceConfig
from penstock.config.tables import TablesConfig

__all__ = ["Config", "DestinationConfig", "SourceConfig", "TablesConfig", "load"]
