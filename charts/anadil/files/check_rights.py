"""`helm test`: what the launcher may do, asked of the cluster itself (SelfSubjectAccessReview)."""

import json
import sys

from kubernetes import client, config

config.load_incluster_config()
reviews = client.AuthorizationV1Api()


def may(namespace: str, group: str, resource: str, verb: str) -> bool:
    """Whether this pod's service account may do it."""
    name, _, part = resource.partition("/")
    asked = client.V1ResourceAttributes(
        namespace=namespace, group=group, resource=name, subresource=part or None, verb=verb
    )
    spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=asked)
    answer = reviews.create_self_subject_access_review(
        client.V1SelfSubjectAccessReview(spec=spec), _request_timeout=(5, 30)
    )
    return bool(answer.status.allowed)


space, rules = sys.argv[1], json.loads(sys.argv[2])
asked = [
    (group, resource, verb)
    for rule in rules
    for group in rule["apiGroups"]
    for resource in rule["resources"]
    for verb in rule["verbs"]
]
refused = [f"{verb} {resource}" for group, resource, verb in asked if not may(space, group, resource, verb)]
if refused:
    sys.exit(f"{space}: the launcher may not {', '.join(refused)}; is the RoleBinding of the chart there?")
if may(space, "", "secrets", "get"):
    sys.stdout.write(f"{space}: the launcher may read secrets too, by a right that is not this chart's\n")
sys.stdout.write(f"{space}: {len(asked)} rights, all there\n")
