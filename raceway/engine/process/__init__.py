"""The process engine: actors in worker processes on this machine."""
