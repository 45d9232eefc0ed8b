"""What the names of Determined's API do here (dsat/determined.py)."""
