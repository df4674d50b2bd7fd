"""What a person sees: the terminal display, plots and command-line options."""
