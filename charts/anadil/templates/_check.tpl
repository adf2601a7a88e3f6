{{/* Values that are each right and together wrong; the schema cannot tell. */}}
{{- define "anadil.check" -}}
{{- $name := include "anadil.fullname" . -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" $name) -}}
{{- fail (printf "fullnameOverride: not set, and Kubernetes takes no Service of the name %s, which follows from the release's; a name begins with a letter and has no dots. Set fullnameOverride, or install under another name" $name) -}}
{{- end -}}
{{- $mlflow := .Values.mlflow -}}
{{- if and (gt (int $mlflow.replicas) 1) (include "anadil.mlflowClaims" .) -}}
{{- fail "mlflow.replicas: more than 1 would share SQLite or a claim; set mlflow.database.existingSecret and mlflow.artifacts.uri, or 1" -}}
{{- end -}}
{{- if and (include "anadil.loginSecret" .) (not $mlflow.auth.existingSecret) (not (include "anadil.mlflowClaims" .)) -}}
{{- fail "mlflow.auth.existingSecret: not set, and accounts need a database where MLflow has no claim; make a Secret with MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD, MLFLOW_FLASK_SERVER_SECRET_KEY and config.ini (docs/guides/cluster.md), or set mlflow.auth.enabled to false" -}}
{{- end -}}
{{- if and $mlflow.enabled $mlflow.database.upgrade (not $mlflow.database.existingSecret) (not (include "anadil.mlflowClaims" .)) -}}
{{- fail "mlflow.database.upgrade: there is no database to upgrade" -}}
{{- end -}}
{{- if and .Values.kubeflow.enabled (not .Values.recipe) -}}
{{- fail "kubeflow.enabled: needs a recipe to register; give it with --set-file recipe=my.yaml" -}}
{{- end -}}
{{- $launch := .Values.launch -}}
{{- if and $launch.enabled (not .Values.recipe) -}}
{{- fail "launch.enabled: needs a recipe; give it with --set-file recipe=my.yaml" -}}
{{- end -}}
{{- if $launch.enabled -}}
{{- $stages := .Files.Get "files/stages.yaml" | fromYaml -}}
{{- if not (hasKey $stages $launch.stage) -}}
{{- fail (printf "launch.stage: %s does not train; give %s" $launch.stage (keys $stages | sortAlpha | join " or ")) -}}
{{- end -}}
{{- $stage := index $stages $launch.stage -}}
{{- $given := keys $launch.inputs -}}
{{- $known := concat $stage.needs $stage.takes -}}
{{- if or (ne (concat $given $stage.needs | uniq | len) (len $given)) (ne (concat $known $given | uniq | len) (len $known)) -}}
{{- $takes := "" -}}
{{- if $stage.takes -}}
{{- $takes = printf ", and takes %s" (join ", " $stage.takes) -}}
{{- end -}}
{{- fail (printf "launch.inputs: %s reads %s%s; give the URI of each, and no other" $launch.stage (join " and " $stage.needs) $takes) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.queue.enabled (not .Values.queue.clusterQueue) -}}
{{- fail "queue.clusterQueue: not set; name the ClusterQueue that the LocalQueue takes from" -}}
{{- end -}}
{{- $storage := .Values.storage -}}
{{- $serving := .Values.serving -}}
{{- if and $serving.enabled (not $serving.model) -}}
{{- fail "serving.model: not set; give the directory of a model artifact, or `merged` of an adapter artifact" -}}
{{- end -}}
{{- if and $serving.enabled (hasPrefix "/" $serving.model) (not (and $storage.enabled (hasPrefix (printf "%s/" (trimSuffix "/" $storage.mountPath)) $serving.model))) -}}
{{- fail (printf "serving.model: %s is on no claim; give s3://, or storage.enabled: true and a path below storage.mountPath" $serving.model) -}}
{{- end -}}
{{- if and .Values.watch.enabled (not .Values.watch.places) -}}
{{- fail "watch.places: not set; give the storage.root of your runs, s3:// or a path below storage.mountPath" -}}
{{- end -}}
{{- range .Values.watch.enabled | ternary .Values.watch.places list -}}
{{- if and (hasPrefix "/" .) (not (and $storage.enabled (hasPrefix (printf "%s/" (trimSuffix "/" $storage.mountPath)) (printf "%s/" .)))) -}}
{{- fail (printf "watch.places: %s is on no claim; give s3://, or storage.enabled: true and a path below storage.mountPath" .) -}}
{{- end -}}
{{- end -}}
{{- if $storage.enabled -}}
{{- $fsx := $storage.fsx -}}
{{- if and $fsx.fileSystemId (not (and $fsx.dnsName $fsx.mountName)) -}}
{{- fail "storage.fsx: fileSystemId needs dnsName and mountName too; aws fsx describe-file-systems tells all three" -}}
{{- end -}}
{{- if and $fsx.fileSystemId $storage.existingClaim -}}
{{- fail "storage: fsx and existingClaim are two ways to the same thing; give one" -}}
{{- end -}}
{{- if and (ne (include "anadil.jobsNamespace" .) .Release.Namespace) (not $fsx.fileSystemId) (not $storage.existingClaim) -}}
{{- fail "storage: with jobs.namespace a new claim in each namespace would be two different volumes; use storage.fsx, existingClaim (in both), or storage.root: s3:// and storage.enabled: false" -}}
{{- end -}}
{{- end -}}
{{- end -}}
