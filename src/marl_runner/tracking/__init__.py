"""Where a run's events go: local files always, and by choice the console and Weights & Biases."""
