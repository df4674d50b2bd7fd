"""The terminal display, plots, and command-line options."""
