"""Run the command line as `python -m fedrfq.cli`; this is the same program as `fedrfq`."""

from fedrfq.cli.start import start

start()
