"""From a job's scores and people's ratings to what its report tells of the judges.

    scores        a job's scores as arrays
    figures       what app/statistics answers, as plain data
    voices        one judge, the panel or a person against people
    combined      the panel's scores
    calibrating   maps from judges' scores to people's
    labelled      shares of labels, preferences
    rivals        who wins of those compared, and who is the best
    grouping      groups of items by their metadata
    spared        judges whom an escalating panel did not ask everywhere
    auditing      what it costs that an escalating panel asks fewer judges
    stopping      jobs that a question ended early
    rankings      how far lists are ordered as people order them
    words         the same in sentences
    assess        all of it

It rests on the libraries of the extra `scores`: a worker runs it in a process of its own (app/reports/assessing.py).
"""
