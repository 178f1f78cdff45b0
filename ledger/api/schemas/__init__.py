"""What requests may say, as the published description has it."""
