"""A campaign of faults against real parts: worker processes, a real store, a provider over HTTP, a proxy in between.

    python -m lab.chaos --runs 200   a seeded campaign; every violation prints the command that replays it
    python -m lab.chaos --fault kill_worker --seed 7  one run
    python -m lab.chaos.measure                       recovery times
    python -m lab.chaos.virtual --seeds 10000         the pipeline's own code over the real scripts, in virtual time
    python -m lab.chaos.mutants                       planted bugs, and which test catches each

What happened is read from the provider's own log, the ledger, the files and the logs, never from a worker's word.
"""
