"""Options and help of `dicast`'s groups of commands.

Nothing here takes long to load, so that `--help` answers at once. What does the work is in the modules of
`dicast.app.cli`, each loaded by the command that needs it.
"""
