"""The places in a unit's and a job's way at which a worker can be made to die, and the rows they stand for."""

POINT_ROWS = {
    "after-acquire": "A4",
    "after-claim": "A4",
    "after-answer": "A2",
    "after-store": "A3",
    "before-complete": "A5",
    "after-complete": "A5",
    "before-close-page": "A5",
    "after-close-page": "A5",
    "after-open-page": "B25",
    "after-publish": "B25",
    "after-start": "B25",
    "after-take-due": "A6",
}
