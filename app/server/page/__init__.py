"""The page at `/`: files that browsers are given as they are. Modules of JavaScript, one style sheet, no build step.

They hold no secret, so everybody is given them; what the page then asks for goes through the guards of its routes.
"""
