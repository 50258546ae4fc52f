"""External transitions: what each agent is sent at the next turn of a branch. One file each."""
