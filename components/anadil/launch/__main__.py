"""The steps that the image `tools` runs in a pipeline, apart from the command line.

python -m anadil.launch pretrain --executor-input JSON   a pipeline's step: launch and follow
python -m anadil.launch retrain --executor-input JSON    a retraining's first step: the recipe of the others
python -m anadil.launch finish --executor-input JSON     its exit handler: clean up and notify
"""

from anadil.launch.kfp_steps import main

if __name__ == "__main__":
    raise SystemExit(main())
