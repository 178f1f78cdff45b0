"""The routes under `/v1`: each parses, makes one call and presents."""
