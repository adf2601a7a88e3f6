# Types of what `__init__.py` loads when it is used; tests compare the two.
from anadil.recipe.load import load_recipe as load_recipe
from anadil.release.compare import compare as compare
from anadil.release.runs import list_runs as list_runs
from anadil.release.start_run import run as run

__version__: str
OFFERED: dict[str, str]
