"""Statements on paper and screen: one document, set as HTML and as PDF."""
