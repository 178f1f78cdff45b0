"""The pages for people, and their charts."""
