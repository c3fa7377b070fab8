"""`python -m fedrfq.cli`: the same as the command `fedrfq`."""

from fedrfq.cli.main import main

main()
