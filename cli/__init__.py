"""The command line: the composition root, where settings, ledger, accountant and terminal meet."""
