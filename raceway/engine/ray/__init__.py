"""The ray engine: actors on a Ray cluster, or on a local Ray that it starts."""
