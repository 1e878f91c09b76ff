"""What can go wrong, and what to do about it: a class for each kind, with its remedy.

Whoever adds an error adds its remedy. Errors cross from Spark's executors to the driver, so they pickle. They
never carry a password: text from elsewhere goes through `secrets.without_secrets`.
"""

# ruff: noqa: F403
from penstock.model.errors.base import *
from penstock.model.errors.consumer import *
from penstock.model.errors.destination import *
from penstock.model.errors.run import *
from penstock.model.errors.source import *
