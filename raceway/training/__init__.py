"""From settings to a trained agent: the training loop, evaluation, stopping, several seeds."""
