"""Which endpoints serve which zones, as counts: seven algorithms on small vectors, and what their answers are worth.

Pure arithmetic, and the same functions everywhere: plain Python here for the controller, compiled by the simulator.
"""

from zonewise.routing.algorithms.assignment import Algorithm, Downgrade, Group, Groups, assign, evaluate
from zonewise.routing.algorithms.score import Score

__all__ = ["Algorithm", "Downgrade", "Group", "Groups", "Score", "assign", "evaluate"]
