"""The command line: the composition root, where settings, ledger, accountant and terminal meet."""

import os

# Matrices are small here: threads that share one wait for each other, seven times as long on a busy machine.
for _threads in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
