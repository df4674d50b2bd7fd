"""The learner: gradients, the optimiser, and the weights that it publishes."""
