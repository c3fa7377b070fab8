"""Run the command line as `python -m fedrfq`; this is the same program as `fedrfq`."""

from fedrfq.cli.start import start

start()
