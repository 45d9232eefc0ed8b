"""Trains a trial class that the arguments name, as a rank of its entrypoint does."""
from dsat.determined import main

main()
