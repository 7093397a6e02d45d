"""`python -m looseleaf.cli` is `looseleaf`."""

from looseleaf.cli import main

main()
