"""The checks, in the order in which they run: each module registers its own."""

from . import clients, pages, load, lifecycle, crowds, starts  # noqa: F401
from . import load_truth, load_attacks, load_manual  # noqa: F401
from . import cache_commands, cache_clients, cache_differences, cache_crowds  # noqa: F401
from . import cache_neighbours, cache_cluster  # noqa: F401
