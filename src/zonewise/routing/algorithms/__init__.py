"""Algorithms that assign endpoints to zones by count: seven algorithms on small vectors, and the score of a result.

Pure arithmetic, the same functions everywhere: plain Python in the controller, compiled by the simulator.
"""

from zonewise.routing.algorithms.assignment import Algorithm, assign
from zonewise.routing.algorithms.groups import Downgrade, EndpointGroup, EndpointGroups, evaluate
from zonewise.routing.algorithms.score import STANDARD, Score, Weights, total_score

__all__ = [
    "STANDARD",
    "Algorithm",
    "Downgrade",
    "EndpointGroup",
    "EndpointGroups",
    "Score",
    "Weights",
    "assign",
    "evaluate",
    "total_score",
]
