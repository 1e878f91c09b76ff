"""`python -m penstock.monitoring`: the HTTP server of a pipeline (`process`)."""

import sys

from penstock.model import children

if __name__ == "__main__":
    with children.importing():
        from penstock.monitoring.process import main
    sys.exit(main())
