"""Prints the tables of docs/configuration.md."""

from penstock.config.models import Config
from penstock.config.reference import option_tables, table

print(table(Config))
for type, keys in option_tables().items():
    print(f"\n### Of type `{type}`\n\n{keys}")
