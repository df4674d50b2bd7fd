"""What a config is made of: the types of settings, and the groups of settings that every algorithm has."""
