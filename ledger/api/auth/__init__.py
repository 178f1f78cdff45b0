"""Authentication: tokens, sessions, and limits on failed sign-ins."""
