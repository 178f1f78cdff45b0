"""Comparisons with a certificate: known attacks, published closed forms, and the values of dp-accounting."""
