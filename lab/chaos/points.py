"""The places in a unit's and a job's way at which a worker can be made to die (lab.chaos.hooks lays them)."""

POINTS = {
    "after-acquire": "when it has a lease, before it claims its unit",
    "after-claim": "when it has claimed a unit, before it calls",
    "after-answer": "when an answer has come, before it is recorded",
    "after-store": "when a result is recorded, before its message is acknowledged",
    "before-complete": "when the report is written, before the job is completed",
    "after-complete": "when the job is completed, before that is announced",
    "before-close-page": "when a page's file is written, before the page is closed",
    "after-close-page": "when a page is closed, before what follows",
    "after-open-page": "when a page is open, before its messages are sent",
    "after-publish": "when a page's messages are sent, before that is noted",
    "after-start": "when a job is started, before its first page is planned",
    "after-take-due": "when it has taken what is due, before that is published",
}
