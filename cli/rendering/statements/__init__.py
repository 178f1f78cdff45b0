"""Statements on paper and screen: one document, set as HTML, as PDF, as CSV."""
