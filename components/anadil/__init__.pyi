# Types of what `__init__.py` loads when it is used; tests compare the two.
from anadil.recipe.load import load_recipe as load_recipe
from anadil.release.chat.conversation import Chat as Chat
from anadil.release.chat.conversation import ChatSettings as ChatSettings
from anadil.release.chat.conversation import open_chat as open_chat
from anadil.release.compare.comparison import compare as compare
from anadil.release.model_source import find_model as find_model
from anadil.release.runs import list_runs as list_runs
from anadil.release.start_run import run as run
from anadil.release.trace.lineage import trace as trace

__version__: str
OFFERED: dict[str, str]
