"""`python -m shuffle_ledger`: the program."""

from shuffle_ledger.cli.main import main

main()
