"""A Kubernetes API that knows Indexed Jobs and RayClusters, and runs the pods of jobs on this machine."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

from tests.kit.fake_server import refused
from tests.kit.http_server import Reply

Object = dict[str, Any]
RunPod = Callable[[Object, int], int]  # Pod template and index -> exit code of its container.


class Batch:
    """Its objects, and what was made and deleted."""

    def __init__(self, run_pod: RunPod) -> None:
        self.objects: dict[str, Object] = {}
        self.made: list[Object] = []
        self.deleted: list[str] = []
        self.pods: dict[str, Object] = {}
        self.ran: list[int] = []
        self.outages: list[Reply] = []
        """Answers to the next requests about objects; they begin with the first object that was made."""
        self.is_away_at_first = False
        self._run_pod = run_pod

    def answer(self, method: str, path: str, _query: dict[str, str], body: Object) -> Reply:
        """The answer of the API server, or of what is in `outages`."""
        if (
            (self.made or self.is_away_at_first)
            and self.outages
            and "/pods" not in path
            and "/events" not in path
        ):
            return self.outages.pop(0)
        if path.endswith("/events"):
            return Reply(body={"items": []})
        if method == "POST":
            return self._create(f"{path}/{body['metadata']['name']}", body)
        if "/pods" in path:
            return self._pod(path)
        if path not in self.objects:
            name = path.rpartition("/")[2]
            return refused(404, f'"{name}" not found', {"name": name, "kind": "jobs"})
        if method == "DELETE":
            self.deleted.append(path.rpartition("/")[2])
            return Reply(body=self.objects.pop(path))
        return Reply(body=self.objects[path])

    def _pod(self, path: str) -> Reply:
        name = path.rpartition("/")[2]
        if name == "pods":
            return Reply(body={"items": list(self.pods.values())})
        found = self.pods.get(name)
        return Reply(body=found) if found else refused(404, "none", {"name": name, "kind": "pods"})

    def _create(self, place: str, body: Object) -> Reply:
        if place in self.objects:
            return refused(409, "already exists", {"name": body["metadata"]["name"], "kind": "jobs"})
        body["metadata"]["uid"] = str(uuid.uuid4())
        body["status"] = {}
        self.objects[place] = body
        self.made.append(body)
        if body["kind"] == "Job":
            threading.Thread(target=self._run, args=(body,), daemon=True).start()
        return Reply(status=201, body=body)

    def _run(self, job: Object) -> None:
        """What the job controller and the kubelet do, one index after another."""
        spec, status = job["spec"], job["status"]
        fatal = {
            code
            for rule in spec["podFailurePolicy"]["rules"]
            if rule["action"] == "FailJob"
            for code in rule["onExitCodes"]["values"]
        }
        for index in range(spec["completions"]):
            for attempt in range(spec["backoffLimitPerIndex"] + 1):
                self.ran.append(index)
                code = self._run_pod(spec["template"], index)
                if not code:
                    break
                if code in fatal or attempt == spec["backoffLimitPerIndex"]:
                    message = f"Container clean failed with exit code {code}"
                    status["conditions"] = [{"type": "Failed", "status": "True", "message": message}]
                    return
            status["succeeded"] = index + 1
        status["conditions"] = [{"type": "Complete", "status": "True"}]
