{{- /* What the operator may do where it serves. A create by server-side apply takes create and patch. */}}
{{- define "tonnage.rules" -}}
- apiGroups: [tonnage.dev]
  resources: [modeldeployments]
  verbs: [get, list, watch]
- apiGroups: [tonnage.dev]
  resources: [modeldeployments/status]
  verbs: [get, patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [get, patch]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [configmaps]  # a model's config.json, by name
  verbs: [get]
- apiGroups: [""]
  resources: [persistentvolumeclaims]  # how the claim of a spec may be mounted, by name
  verbs: [get]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]  # to see a conflicting autoscaler
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- if eq .Values.settings.mode "full" }}
- apiGroups: [apps]
  resources: [deployments]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [pods]  # one annotation, by which the pods with the least to do go first
  verbs: [patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]  # deleted when a spec asks for none any more, as the next
  verbs: [get, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch, delete]
{{- end }}
{{- end }}

{{- define "tonnage.subject" -}}
- kind: ServiceAccount
  name: {{ include "tonnage.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
