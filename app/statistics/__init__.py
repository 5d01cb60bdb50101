"""What ratings say: pure functions on frames and arrays.

Nothing here knows jobs, stores or prompts. Ratings come in long form (`ratings`); chance comes in as a
`numpy.random.Generator`, so the same seed gives the same figures. Every answer is an `Estimate` with its interval, or
`Unknown` with the reason (`estimates`); bad input raises `RatingsError` before anything is computed.

    ratings       long form, its checks, items x raters
    estimates     Estimate, Unknown
    resampling    bootstrap intervals over items
    correlation, kappa, alpha, icc, differences    one coefficient each, as a function of the items' weights
    agreement     judges with people, people with the other people, judges among themselves
    independence  how many independent judges a panel is worth
    sampling      which items people should rate
    means, powered    intervals of means; prediction-powered inference
    betting, questions    confidence sequences; stopping as soon as a question is answered
    combining, labels, escalation    several opinions into one; when the next judge is not needed
    calibration   judges' scores mapped to people's, and what that is worth
    panel_search  which panel is the cheapest that is good enough
    groups, runs, preferences    systems, two runs, pairwise choices

The libraries behind it come with the extra `scores`. They are imported by the modules, not by this package.
"""
