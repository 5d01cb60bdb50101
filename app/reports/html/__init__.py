"""The report of a finished job, and a comparison of two jobs, as a self-contained HTML file each.

Opening the file loads and runs nothing: plots are static SVG, folding uses `<details>`, and the page's
Content-Security-Policy forbids everything but its own style sheet. All texts of jobs, models and providers are
hostile: they are cut, shown by `printable`, and escaped by the templates.
"""
