"""Which endpoints serve which zones, as counts: seven algorithms on small vectors, and what their answers are worth.

Pure arithmetic, and the same functions everywhere: plain Python here for the controller, compiled by the simulator.
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
