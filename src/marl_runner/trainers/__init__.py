"""The trainers: the public Python interface, thin over the loop and its parts."""
