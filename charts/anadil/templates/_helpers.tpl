{{/* Name of everything: the release's, with the chart's where that says more. */}}
{{- define "anadil.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels by which pods are selected; they never change. Arguments: root, component. */}}
{{- define "anadil.selector" -}}
app.kubernetes.io/name: anadil
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of pods: network policies tell them by who manages them from pods of training jobs. */}}
{{- define "anadil.podLabels" -}}
{{ include "anadil.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "anadil.labels" -}}
{{ include "anadil.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Image reference. Arguments: root, name (mlflow, tools, pipelines). */}}
{{- define "anadil.image" -}}
{{- $image := index .root.Values.images .name -}}
{{- $digest := or $image.digest (and (not $image.tag) (get .root.Values.digests .name)) | default "" -}}
{{- include "anadil.imageOf" (dict "root" .root "image" (merge (dict "digest" $digest) $image)) -}}
{{- end -}}

{{/* The same, of an image that stands elsewhere. Arguments: root, image. */}}
{{- define "anadil.imageOf" -}}
{{- $registry := .image.registry | default .root.Values.images.registry -}}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* Name of a service account. Arguments: root, name. */}}
{{- define "anadil.serviceAccount" -}}
{{- $account := index .root.Values.serviceAccounts .name -}}
{{- if $account.name -}}
{{- $account.name -}}
{{- else if $account.create -}}
{{- printf "%s-%s" (include "anadil.fullname" .root) .name -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- define "anadil.jobsNamespace" -}}
{{- .Values.jobs.namespace | default .Release.Namespace -}}
{{- end -}}

{{/* The namespaces that hold our things: the release's, and that of training jobs. */}}
{{- define "anadil.namespaces" -}}
{{- list .Release.Namespace (include "anadil.jobsNamespace" .) | uniq | toJson -}}
{{- end -}}

{{/* Namespaces of steps and jobs, which report to MLflow: the release's, that of jobs, that of pipeline runs. */}}
{{- define "anadil.clientNamespaces" -}}
{{- $spaces := list .Release.Namespace (include "anadil.jobsNamespace" .) -}}
{{- if .Values.kubeflow.enabled -}}
{{- $spaces = append $spaces (.Values.kubeflow.runNamespace | default .Values.kubeflow.namespace) -}}
{{- end -}}
{{- $spaces | uniq | toJson -}}
{{- end -}}

{{/* Secret with the login of MLflow; empty where there is none. */}}
{{- define "anadil.loginSecret" -}}
{{- if and .Values.mlflow.enabled .Values.mlflow.auth.enabled -}}
{{- .Values.mlflow.auth.existingSecret | default (printf "%s-mlflow-login" (include "anadil.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{- define "anadil.claim" -}}
{{- .Values.storage.existingClaim | default (printf "%s-storage" (include "anadil.fullname" .)) -}}
{{- end -}}

{{- define "anadil.mlflowHost" -}}
{{- printf "%s-mlflow.%s.svc" (include "anadil.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* Where stages report to; empty where there is no server. */}}
{{- define "anadil.trackingUri" -}}
{{- if .Values.mlflow.enabled -}}
{{- printf "http://%s:%d" (include "anadil.mlflowHost" .) (int .Values.mlflow.service.port) -}}
{{- else -}}
{{- .Values.trackingUri -}}
{{- end -}}
{{- end -}}

{{/* Whether MLflow keeps anything on its claim. */}}
{{- define "anadil.mlflowClaims" -}}
{{- if and .Values.mlflow.enabled (not (and .Values.mlflow.database.existingSecret .Values.mlflow.artifacts.uri)) -}}true{{- end -}}
{{- end -}}

{{- define "anadil.mlflowClaim" -}}
{{- .Values.mlflow.persistence.existingClaim | default (printf "%s-mlflow" (include "anadil.fullname" .)) -}}
{{- end -}}

{{/* The recipe as a file: a text as it is, a table with what the chart knows filled in. */}}
{{- define "anadil.recipe" -}}
{{- if kindIs "string" .Values.recipe -}}
{{- .Values.recipe -}}
{{- else if .Values.recipe -}}
{{- $cluster := dict "namespace" (include "anadil.jobsNamespace" .) "service_account" (include "anadil.serviceAccount" (dict "root" . "name" "stage")) -}}
{{- with .Values.images.registry -}}
{{- $_ := set $cluster "image" (printf "%s/anadil/{stage}:{version}" (trimSuffix "/" .)) -}}
{{- end -}}
{{- with .Values.digests -}}
{{- $_ := set $cluster "digests" . -}}
{{- end -}}
{{- with .Values.images.pullSecrets -}}
{{- $_ := set $cluster "pull_secrets" . -}}
{{- end -}}
{{- with include "anadil.loginSecret" . -}}
{{- $_ := set $cluster "secrets" (dict . (list "MLFLOW_TRACKING_USERNAME" "MLFLOW_TRACKING_PASSWORD")) -}}
{{- end -}}
{{- $known := dict "cluster" $cluster -}}
{{- with include "anadil.trackingUri" . -}}
{{- $_ := set $known "tracking" (dict "uri" .) -}}
{{- end -}}
{{- if .Values.storage.enabled -}}
{{- $_ := set $cluster "volumes" (list (dict "claim" (include "anadil.claim" .) "path" .Values.storage.mountPath)) -}}
{{- $_ := set $known "storage" (dict "root" (printf "%s/anadil" .Values.storage.mountPath)) -}}
{{- end -}}
{{- toYaml (mustMerge (deepCopy .Values.recipe) $known) -}}
{{- end -}}
{{- end -}}
