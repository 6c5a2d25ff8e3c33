"""`python -m fedgen` is the command `fedgen`."""

from fedgen.cli import main

main()
