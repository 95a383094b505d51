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
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
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

{{- /* One line for each setting that has a value, as JSON: a whole number stays one. */}}
{{- define "tonnage.settings" -}}
{{- $_ := required "settings.prometheusUrl is needed: the address of the Prometheus that scrapes the engines" .Values.settings.prometheusUrl }}
{{- range $name, $value := omit .Values.settings "operatorNamespace" "catalogFolder" "calibrationFolder" }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }}: {{ toJson $value }}
{{- end }}
{{- end }}
operatorNamespace: {{ toJson .Release.Namespace }}
{{- if .Values.gpuClasses }}
catalogFolder: {{ include "tonnage.gpuClassFolder" . }}
{{- end }}
{{- if .Values.calibrations }}
calibrationFolder: {{ include "tonnage.calibrationFolder" . }}
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
