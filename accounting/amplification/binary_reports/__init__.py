"""Rounds of reports that are one bit each: the largest divergence over all datasets, by the reports' own law.

`law.py` describes one report, `few.py` lists every dataset of few users, `tilted.py` bounds the supremum over
the datasets of many, and `profile.py` chooses between them.
"""
