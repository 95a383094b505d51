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
  verbs: [patch]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets/scale]
  verbs: [patch]
- apiGroups: [apps]
  resources: [replicasets, statefulsets]  # what links pods to Deployments, and to LeaderWorkerSets
  verbs: [list, watch]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch]
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
- apiGroups: [tonnage.dev]
  resources: [modeldeployments]  # of the roles of one with spec.topology
  verbs: [create, patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [create, patch]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]  # in place of Deployments, where a replica runs over several nodes
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

{{- /* Kinds that a field of spec.pods makes, changes and deletes. */}}
{{- define "tonnage.askedKinds" -}}
disruptionBudget: {group: policy, resource: poddisruptionbudgets}
networkPolicy: {group: networking.k8s.io, resource: networkpolicies}
{{- end }}

{{- /* Kinds that every spec with an engine makes. */}}
{{- define "tonnage.askedAlways" -}}
- {group: "", resource: services, name: services}
{{- if .Values.admissionPolicy.askPodMonitors }}
- {group: monitoring.coreos.com, resource: podmonitors, name: podmonitors.monitoring.coreos.com}
{{- end }}
{{- if .Values.admissionPolicy.askLeaderWorkerSets }}
- {group: leaderworkerset.x-k8s.io, resource: leaderworkersets, name: leaderworkersets.leaderworkerset.x-k8s.io}
{{- end }}
{{- end }}

{{- /* Every write of the operator's own account to what it serves, for policies. */}}
{{- define "tonnage.ownWrites" -}}
matchConstraints:
  resourceRules:
    - apiGroups: [tonnage.dev]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [modeldeployments]
    - apiGroups: [apps]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [deployments, deployments/scale]
    - apiGroups: [leaderworkerset.x-k8s.io]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [leaderworkersets, leaderworkersets/scale]
    - apiGroups: [""]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [services, pods]
    - apiGroups: [monitoring.coreos.com]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [podmonitors]
    - apiGroups: [policy]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE, DELETE]
      resources: [poddisruptionbudgets]
    - apiGroups: [networking.k8s.io]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE, DELETE]
      resources: [networkpolicies]
{{ include "tonnage.isOperator" . }}
{{- end }}

{{- define "tonnage.isOperator" -}}
matchConditions:
  - name: is-the-operator
    expression: >-
      request.userInfo.username
      == 'system:serviceaccount:{{ .Release.Namespace }}:{{ include "tonnage.serviceAccountName" . }}'
{{- end }}

{{- /* The beginning of a binding: what refers to parameters is added to it. */}}
{{- define "tonnage.ownBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "tonnage.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}

{{- /* What pods of ours may have, whoever may change their template beside us: all of it within Pod Security's baseline.
Its rules for containers are asked of the pod too, which has some of the fields. */}}
{{- define "tonnage.confined" -}}
!{{ . }}.?hostNetwork.orValue(false) && !{{ . }}.?hostPID.orValue(false) && !{{ . }}.?hostIPC.orValue(false)
{{- " " -}} && !{{ . }}.?automountServiceAccountToken.orValue(true)
{{- " " -}} && !{{ . }}.?priorityClassName.orValue('').startsWith('system-')
{{- " " -}} && {{ . }}.?volumes.orValue([]).all(each, has(each.emptyDir) || has(each.persistentVolumeClaim)
{{- " " -}} || has(each.configMap) || has(each.downwardAPI))
{{- " " -}} && ([{{ . }}] + {{ . }}.containers + {{ . }}.?initContainers.orValue([])).all(each,
{{- " " -}} each.?ports.orValue([]).all(port, port.?hostPort.orValue(0) == 0)
{{- " " -}} && !each.?envFrom.orValue([]).exists(source, has(source.secretRef))
{{- " " -}} && each.?securityContext.orValue({}).all(field, field in ['allowPrivilegeEscalation', 'capabilities',
{{- " " -}} 'fsGroup', 'fsGroupChangePolicy', 'privileged', 'procMount', 'readOnlyRootFilesystem', 'runAsGroup',
{{- " " -}} 'runAsNonRoot', 'runAsUser', 'seccompProfile'])
{{- " " -}} && !each.?securityContext.?privileged.orValue(false)
{{- " " -}} && each.?securityContext.?procMount.orValue('Default') == 'Default'
{{- " " -}} && each.?securityContext.?capabilities.?add.orValue([]) == []
{{- " " -}} && each.?securityContext.?seccompProfile.?type.orValue('') != 'Unconfined')
{{- end }}

{{- /* How many entries the metadata of a ModelDeployment may have: each of them has a length of its own. */}}
{{- define "tonnage.sizes" -}}
annotations: {most: 256, empty: "{}"}
finalizers: {most: 32, empty: "[]"}
labels: {most: 64, empty: "{}"}
managedFields: {most: 64, empty: "[]"}
ownerReferences: {most: 16, empty: "[]"}
{{- end }}
