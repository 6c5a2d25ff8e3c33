"""`python -m fedgen` is the command `fedgen`."""

from fedgen.cli.main import main

main()
