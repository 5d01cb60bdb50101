"""A campaign of faults against real parts: worker processes, a real store, a provider over HTTP, a proxy in between.

    python -m chaos --runs 200                    a seeded campaign; every violation prints the command that replays it
    python -m chaos --fault kill_worker --seed 7  one run
    python -m chaos.measure                       recovery times
    python -m chaos.virtual --seeds 10000         the pipeline's own code over the real scripts, in virtual time
    python -m chaos.mutants                       planted bugs, and which test catches each

What happened is read from the provider's own log, the ledger, the files and the logs, never from a worker's word.
"""
