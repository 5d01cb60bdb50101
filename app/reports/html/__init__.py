"""The report of a finished job, and a comparison of two, as one HTML file each, complete in itself.

Nothing is fetched and nothing is run when it is opened: plots are static SVG, what folds is `<details>`, and the page's
Content-Security-Policy forbids everything but its own style sheet. All texts of jobs, models and providers are hostile:
they are cut, shown by `printable`, and escaped by the templates.
"""
