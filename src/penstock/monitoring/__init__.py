"""What a pipeline does, over HTTP: probes, status, metrics, a dashboard, and what may be asked of it.

A process of its own serves it, started by `penstock run` and ending with it: requests share neither the
pipeline's interpreter nor its fate. It looks at the state store, the spool and the servers as
`penstock status` does, and hears of every event through a pipe. `penstock serve` is the same without a
pipeline: it looks, and may be asked nothing.
"""
