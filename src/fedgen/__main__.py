"""`python -m fedgen` is the command `fedgen`."""

from fedgen.cli.start import main

main()
