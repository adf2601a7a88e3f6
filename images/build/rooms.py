"""Leave in a checkout what an image holds, and print the module that it starts: `rooms.py IMAGE CHECKOUT`."""

import shutil
import sys
from pathlib import Path

image, checkout = sys.argv[1], Path(sys.argv[2])
sys.path.insert(0, str(checkout / "components"))
sys.dont_write_bytecode = True

from anadil.core.stages import ENGINE_IMAGES, LAPTOP, STAGES, rooms_of  # noqa: E402  the table of the checkout, not of this project

package = checkout / "components/anadil"
rooms = rooms_of(image)
if image not in ("pipelines", LAPTOP):
    shutil.rmtree(checkout / "pipelines")
for path in package.rglob("*.*") if rooms else ():
    place = path.relative_to(package).as_posix()
    inside = "/" not in place or any(place.startswith(f"{room}/") for room in rooms)
    above = path.name == "__init__.py" and any(room.startswith(place[: -len(path.name)]) for room in rooms)
    # The table loads the record of each stage, and the planner what each needs.
    record = path.parent.name in STAGES and path.name in ("__init__.py", "stage.py", "need.py")
    if path.is_file() and not inside and not above and not record:
        path.unlink()
started = f"anadil.{image}" if image in STAGES else "anadil"
sys.stdout.write("anadil.launch.clean\n" if image in ENGINE_IMAGES.values() else f"{started}\n")
