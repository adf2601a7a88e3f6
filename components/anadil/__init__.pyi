# Types of what `__init__.py` loads when it is used; tests compare the two.
from anadil.recipe.load import load_recipe as load_recipe
from anadil.release.artifact_object import Artifact as Artifact
from anadil.release.artifact_object import open_artifact as open_artifact
from anadil.release.chat.conversation import Chat as Chat
from anadil.release.chat.conversation import ChatSettings as ChatSettings
from anadil.release.chat.conversation import open_chat as open_chat
from anadil.release.compare.comparison import compare as compare
from anadil.release.model_source import find_model as find_model
from anadil.release.runs import list_runs as list_runs
from anadil.release.stage_calls import clean as clean
from anadil.release.stage_calls import evaluate as evaluate
from anadil.release.stage_calls import finetune as finetune
from anadil.release.stage_calls import pretrain as pretrain
from anadil.release.stage_calls import run as run
from anadil.release.stage_calls import train_tokenizer as train_tokenizer
from anadil.release.trace.lineage import trace as trace

__version__: str
OFFERED: dict[str, str]
