"""One module for each command or group of commands: it parses, makes one call and presents.

Imports everything else in `cli`.
"""
