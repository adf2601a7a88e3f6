{{/* What every pod of ours has in common. Arguments: root, token (whether it calls the Kubernetes API). */}}
{{- define "anadil.pod" -}}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Security of a container: nothing is written outside its volumes. */}}
{{- define "anadil.container" -}}
imagePullPolicy: {{ .Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Scratch that images may write. */}}
{{- define "anadil.scratchMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/anadil}
{{- end -}}

{{- define "anadil.scratchVolumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 2Gi}
- name: home
  emptyDir: {sizeLimit: 1Gi}
{{- end -}}

{{/* User and password of MLflow for clients of ours. */}}
{{- define "anadil.mlflowLogin" -}}
{{- with include "anadil.loginSecret" . -}}
- name: MLFLOW_TRACKING_USERNAME
  valueFrom: {secretKeyRef: {name: {{ . }}, key: MLFLOW_TRACKING_USERNAME}}
- name: MLFLOW_TRACKING_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . }}, key: MLFLOW_TRACKING_PASSWORD}}
{{- end -}}
{{- end -}}
