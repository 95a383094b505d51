{{- define "tonnage.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "tonnage.fullname" -}}
{{- $name := include "tonnage.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | replace "." "-" | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | replace "." "-" | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Of what has no namespace: two releases of one name do not collide. */}}
{{- define "tonnage.clusterName" -}}
{{- printf "%s.%s" (include "tonnage.fullname" .) .Release.Namespace }}
{{- end }}

{{- define "tonnage.selector" -}}
app.kubernetes.io/name: {{ include "tonnage.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tonnage.labels" -}}
{{ include "tonnage.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tonnage.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tonnage.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tonnage.image" -}}
{{- if contains ":" (last (splitList "/" .Values.image.repository)) }}
{{- fail (printf "image.repository %s holds a tag: put it into image.tag, or a digest into image.digest" .Values.image.repository) }}
{{- end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* Here, not in values.yaml: what somebody gives replaces it whole, and old values have it too. */}}
{{- define "tonnage.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "tonnage.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "tonnage.gpuClassFolder" -}}
/etc/tonnage-gpus
{{- end }}

{{- define "tonnage.calibrationFolder" -}}
/etc/tonnage-calibrations
{{- end }}

{{- define "tonnage.isNamespaced" -}}
{{- $namespaces := .Values.settings.namespaces }}
{{- if eq .Values.rbac.scope "namespaced" }}
{{- if not $namespaces }}
{{- fail "rbac.scope is namespaced, but settings.namespaces is empty: list the namespaces to serve" }}
{{- end }}
{{- print "true" }}
{{- else if $namespaces }}
{{- fail (printf "settings.namespaces lists %s, but rbac.scope is cluster, which grants rights everywhere: set rbac.scope to namespaced" (join ", " $namespaces)) }}
{{- end }}
{{- end }}

{{- /* A mapping without what is null: Helm drops a default by one, and a null stays with --reuse-values. */}}
{{- define "tonnage.given" -}}
{{- if kindIs "slice" . }}
{{- toYaml . }}
{{- else }}
{{- $given := dict }}
{{- range $name, $value := . }}
{{- if kindIs "map" $value }}
{{- $_ := set $given $name (include "tonnage.given" $value | fromYaml) }}
{{- else if not (kindIs "invalid" $value) }}
{{- $_ := set $given $name $value }}
{{- end }}
{{- end }}
{{- if $given }}
{{- toYaml $given }}
{{- end }}
{{- end }}
{{- end }}

{{- /* One line for each setting that has a value, as JSON: a whole number stays one. */}}
{{- define "tonnage.settings" -}}
{{- $_ := required "settings.prometheusUrl is needed: the address of the Prometheus that scrapes the engines" .Values.settings.prometheusUrl }}
{{- range $name, $value := omit .Values.settings "operatorNamespace" "podTemplates" "catalogFolder" "calibrationFolder" }}
{{- if kindIs "map" $value }}
{{ $name }}: {{ include "tonnage.given" $value | fromYaml | toJson }}
{{- else if not (kindIs "invalid" $value) }}
{{ $name }}: {{ toJson $value }}
{{- end }}
{{- end }}
operatorNamespace: {{ toJson .Release.Namespace }}
podTemplates: {{ kindIs "bool" .Values.settings.podTemplates | ternary .Values.settings.podTemplates .Values.admissionPolicy.create }}
{{- if .Values.gpuClasses }}
catalogFolder: {{ include "tonnage.gpuClassFolder" . }}
{{- end }}
{{- if .Values.calibrations }}
calibrationFolder: {{ include "tonnage.calibrationFolder" . }}
{{- end }}
{{- end }}

{{- /* What is given twice in a mapping is read differently by everybody who reads it. */}}
{{- define "tonnage.refuseOwn" -}}
{{- $value := .value }}
{{- range $name, $_ := .given }}
{{- if hasKey $.own $name }}
{{- fail (printf "%s must not set %s: the chart sets it itself" $value $name) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Values that render, and break what they are rendered into. */}}
{{- define "tonnage.checked" -}}
{{- $own := fromYaml (include "tonnage.labels" .) }}
{{- include "tonnage.refuseOwn" (dict "value" "podLabels" "given" .Values.podLabels "own" $own) }}
{{- include "tonnage.refuseOwn" (dict "value" "podMonitor.labels" "given" .Values.podMonitor.labels "own" $own) }}
{{- include "tonnage.refuseOwn" (dict "value" "serviceMonitor.labels" "given" .Values.serviceMonitor.labels "own" $own) }}
{{- $annotations := dict "kubectl.kubernetes.io/default-container" "" "checksum/settings" "" }}
{{- include "tonnage.refuseOwn" (dict "value" "podAnnotations" "given" .Values.podAnnotations "own" $annotations) }}
{{- range $name, $_ := .Values.settings.podMonitorLabels }}
{{- if regexMatch "^((.*[.])?tonnage[.]dev/.*|app[.]kubernetes[.]io/(name|instance|managed-by))$" $name }}
{{- fail (printf "settings.podMonitorLabels must not set %s: the operator sets it itself" $name) }}
{{- end }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if has .name (list "POD_NAME" "POD_NAMESPACE") }}
{{- fail (printf "extraEnv must not set %s: the chart sets it itself" .name) }}
{{- end }}
{{- end }}
{{- include "tonnage.checkedGpuClasses" . }}
{{- range $file, $text := .Values.calibrations }}
{{- $read := fromJson $text }}
{{- if hasKey $read "Error" }}
{{- fail (printf "calibrations: %s is not JSON: %s" $file $read.Error) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Field of a GPU class to the kind of its value, a number being a float64. */}}
{{- define "tonnage.gpuClassFields" -}}
required:
  name: string
  memory_bytes: float64
  nominal_memory_bytes: float64
  memory_bytes_per_s: float64
  peak_flop_per_s: map
  interconnect_bytes_per_s: float64
  interconnect: string
optional:
  aliases: slice
  gpus_per_node: float64
  host_cache_bytes: float64
  product_labels: slice
  has_bf16: bool
  generation: string
  is_unified: bool
  memory_kind: string
  tdp_watts: float64
  price: map
  sources: slice
  notes: string
{{- end }}

{{- /* Older versions of Helm do not read TOML, and would refuse a template that names the function. */}}
{{- define "tonnage.checkedGpuClasses" -}}
{{- if semverCompare ">=3.17.0-0" .Capabilities.HelmVersion.Version }}
{{- $fields := fromYaml (include "tonnage.gpuClassFields" .) }}
{{- $known := merge (dict) $fields.required $fields.optional }}
{{- $files := dict }}
{{- range $file, $text := .Values.gpuClasses }}
{{- $class := tpl "{{ fromToml .text | toJson }}" (dict "text" $text "Template" $.Template) | fromJson }}
{{- if hasKey $class "Error" }}
{{- fail (printf "gpuClasses: %s is not TOML: %s" $file $class.Error) }}
{{- end }}
{{- range $field, $_ := $fields.required }}
{{- if not (hasKey $class $field) }}
{{- fail (printf "gpuClasses: %s has no %s" $file $field) }}
{{- end }}
{{- end }}
{{- range $field, $value := $class }}
{{- if not (hasKey $known $field) }}
{{- fail (printf "gpuClasses: %s has an unknown field %s; known: %s" $file $field (keys $known | sortAlpha | join ", ")) }}
{{- end }}
{{- if ne (kindOf $value) (get $known $field) }}
{{- fail (printf "gpuClasses: %s: %s is a %s, wanted: %s" $file $field (kindOf $value) (get $known $field)) }}
{{- end }}
{{- end }}
{{- if hasKey $files $class.name }}
{{- fail (printf "gpuClasses: %s and %s both define %s" (get $files $class.name) $file $class.name) }}
{{- end }}
{{- $_ := set $files $class.name $file }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tonnage.alert" -}}
for: {{ .for }}
labels:
  severity: {{ .severity }}
{{- end }}

{{- /* Prometheus fills this in, not Helm. */}}
{{- define "tonnage.ofObject" -}}
{{ "{{ $labels.namespace }}/{{ $labels.name }}" }}
{{- end }}
