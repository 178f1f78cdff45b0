"""What an auditor gets: statements, and bundles of evidence that are verified on another computer."""
