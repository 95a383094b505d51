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
  resources: [replicasets, statefulsets]  # what links pods to Deployments, and to LeaderWorkerSets
  verbs: [list, watch]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [configmaps]  # by name: a model's config.json, and flags of scale targets
  verbs: [get]
- apiGroups: [""]
  resources: [persistentvolumeclaims]  # how the claim of a spec may be mounted, by name
  verbs: [get]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]  # to see a conflicting autoscaler
  verbs: [list, watch]
{{- if ne .Values.settings.mode "recommend" }}
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [patch]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets/scale]
  verbs: [patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}
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

{{- /* The ServiceAccount of a pod: Kubernetes reads the old field where the other is absent or empty. */}}
{{- define "tonnage.accountOf" -}}
[{{ . }}.?serviceAccountName.orValue(''), {{ . }}.?serviceAccount.orValue('')].filter(name, name != '')[?0].orValue('')
{{- end }}

{{- /* What pods of ours may have, whoever may change their template beside us: all of it within Pod Security's baseline,
no more privileges than they begin with, and GPUs in the engine's container alone. */}}
{{- define "tonnage.confined" -}}
{{- $pod := .pod }}
{{- $gpus := (.root.Files.Get "files/pod-rules.yaml" | fromYaml).names.amounts -}}
!{{ $pod }}.?hostNetwork.orValue(false) && !{{ $pod }}.?hostPID.orValue(false) && !{{ $pod }}.?hostIPC.orValue(false)
{{- " " -}} && !{{ $pod }}.?automountServiceAccountToken.orValue(true) && {{ $pod }}.?nodeName.orValue('') == ''
{{- " " -}} && {{ $pod }}.?resourceClaims.orValue([]) == []
{{- " " -}} && !{{ $pod }}.?priorityClassName.orValue('').startsWith('system-')
{{- " " -}} && {{ $pod }}.?volumes.orValue([]).all(each, has(each.emptyDir) || has(each.persistentVolumeClaim)
{{- " " -}} || has(each.configMap) || has(each.downwardAPI) || each.?secret.?items.orValue([]) != []
{{- " " -}} || (has(each.projected) && each.projected.?sources.orValue([]).all(source, has(source.configMap)
{{- " " -}} || has(source.downwardAPI) || source.?secret.?items.orValue([]) != [])))
{{- " " -}} && {{ include "tonnage.unprivileged" (printf "%s.?securityContext" $pod) }}
{{- " " -}} && ({{ $pod }}.containers + {{ $pod }}.?initContainers.orValue([]) + {{ $pod }}.?ephemeralContainers.orValue([])).all(each,
{{- " " -}} !each.?securityContext.?allowPrivilegeEscalation.orValue(true)
{{- " " -}} && {{ include "tonnage.unprivileged" "each.?securityContext" }}
{{- " " -}} && each.?ports.orValue([]).all(port, port.?hostPort.orValue(0) == 0)
{{- " " -}} && [each.?livenessProbe, each.?readinessProbe, each.?startupProbe, each.?lifecycle.?postStart, each.?lifecycle.?preStop]
{{- " " -}}.all(asked, asked.?httpGet.?host.orValue('') == '' && asked.?tcpSocket.?host.orValue('') == '')
{{- " " -}} && each.?volumeDevices.orValue([]) == [] && each.?volumeMounts.orValue([]).all(mount,
{{- " " -}} mount.?mountPropagation.orValue('None') == 'None' && mount.?subPathExpr.orValue('') == '')
{{- " " -}} && !each.?envFrom.orValue([]).exists(source, has(source.secretRef))
{{- " " -}} && each.?resources.?claims.orValue([]) == [])
{{- " " -}} && ({{ $pod }}.containers.filter(each, each.name != 'vllm') + {{ $pod }}.?initContainers.orValue([])).all(each,
{{- " " -}} each.?resources.?limits.orValue({}).all(name, !name.matches('^({{ $gpus }})$'))
{{- " " -}} && each.?resources.?requests.orValue({}).all(name, !name.matches('^({{ $gpus }})$')))
{{- end }}

{{- /* Of a securityContext that may be absent: these fields alone, and no power by them. */}}
{{- define "tonnage.unprivileged" -}}
{{ . }}.orValue({}).all(field, field in ['allowPrivilegeEscalation', 'capabilities', 'fsGroup', 'fsGroupChangePolicy',
{{- " " -}} 'privileged', 'procMount', 'readOnlyRootFilesystem', 'runAsGroup', 'runAsNonRoot', 'runAsUser', 'seccompProfile',
{{- " " -}} 'supplementalGroups', 'supplementalGroupsPolicy'])
{{- " " -}} && !{{ . }}.?privileged.orValue(false) && {{ . }}.?procMount.orValue('Default') == 'Default'
{{- " " -}} && {{ . }}.?capabilities.?add.orValue([]) == [] && {{ . }}.?seccompProfile.?type.orValue('') != 'Unconfined'
{{- end }}

{{- /* Validations of a node of a pod template and of all below it, by the table of what a template may say.
node: in CEL; open and close: what asks all nodes of the kind; path: for people. */}}
{{- define "tonnage.podChecks" -}}
{{- $in := . }}
{{- $node := .node }}
{{- with index .rules.fields .kind }}
{{- $names := list }}
{{- range splitList " " . }}{{ $names = append $names (splitList ":" . | first) }}{{ end }}
- expression: >-
    {{ $in.open }}{{ $node }}.all(field, field in {{ toJson $names | replace "\"" "'" }}){{ $in.close }}
  message: {{ printf "%s has a field that is none of %s" $in.path (join ", " $names) | quote }}
{{- range index $in.rules.required $in.kind }}
- expression: >-
    {{ $in.open }}{{ $node }}.?{{ . }}.orValue({{ eq . "items" | ternary "[]" "''" }}) != {{ eq . "items" | ternary "[]" "''" }}{{ $in.close }}
  message: {{ printf "%s.%s must be given" $in.path . | quote }}
{{- end }}
{{- range $name, $rule := index $in.rules.values $in.kind }}
- expression: >-
    {{ $in.open }}!has({{ $node }}.{{ $name }}) || {{ hasKey $rule "not" | ternary "!" "" }}string({{ $node }}.{{ $name }}).matches('^({{ $rule.not | default $rule.only }})$'){{ $in.close }}
  message: {{ printf "%s.%s must %s %s" $in.path $name (hasKey $rule "not" | ternary "not be" "be") ($rule.not | default $rule.only) | quote }}
{{- end }}
{{- range splitList " " . }}
{{- $parts := splitList ":" . }}
{{- if gt (len $parts) 1 }}
{{- $name := first $parts }}
{{- $kind := trimSuffix "[]" (last $parts) }}
{{- if hasSuffix "[]" (last $parts) }}
{{- $each := printf "%sx" (regexFind "^n.*$" $node | default "n" | splitList "." | first) }}
{{- $all := printf "%s%s.?%s.orValue([]).all(%s, " $in.open $node $name $each }}
{{- $path := printf "%s.%s[]" $in.path $name }}
{{- if eq $kind "container" }}
{{- $engine := printf "%s[vllm]" (trimSuffix "[]" $path) }}
{{- include "tonnage.podChecks" (dict "rules" $in.rules "kind" "engine" "node" $each "path" $engine "open" (printf "%s%s.?name.orValue('') != 'vllm' || (" $all $each) "close" (printf "))%s" $in.close)) }}
{{- include "tonnage.podChecks" (dict "rules" $in.rules "kind" $kind "node" $each "path" $path "open" (printf "%s%s.?name.orValue('') == 'vllm' || (" $all $each) "close" (printf "))%s" $in.close)) }}
{{- else }}
{{- include "tonnage.podChecks" (dict "rules" $in.rules "kind" $kind "node" $each "path" $path "open" (printf "%s(" $all) "close" (printf "))%s" $in.close)) }}
{{- end }}
{{- else }}
{{- include "tonnage.podChecks" (dict "rules" $in.rules "kind" $kind "node" (printf "%s.%s" $node $name) "path" (printf "%s.%s" $in.path $name) "open" (printf "%s!has(%s.%s) || (" $in.open $node $name) "close" (printf ")%s" $in.close)) }}
{{- end }}
{{- end }}
{{- end }}
{{- else }}
{{- with index .rules.names .kind }}
- expression: >-
    {{ $in.open }}{{ $node }}.all(name, !name.matches('^({{ . }})$')){{ $in.close }}
  message: {{ printf "%s has a name that is Tonnage's, or that of GPUs" $in.path | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* How many entries the metadata of a ModelDeployment may have: each of them has a length of its own. */}}
{{- define "tonnage.sizes" -}}
annotations: {most: 256, empty: "{}"}
finalizers: {most: 32, empty: "[]"}
labels: {most: 64, empty: "{}"}
managedFields: {most: 64, empty: "[]"}
ownerReferences: {most: 16, empty: "[]"}
{{- end }}
