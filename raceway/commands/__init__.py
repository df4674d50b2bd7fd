"""The commands of the command line: one module per command, each with `run(arguments)`, and modules that they share."""
