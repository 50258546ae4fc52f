"""`marl-eval`: a trained team on a dataset split: rewards, pass@k, intervals, and agents of other runs in it."""
