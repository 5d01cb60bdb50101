"""`python -m dicast`: the command line."""

from dicast.app.cli.main import main

main()
