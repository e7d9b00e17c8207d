{{- define "defragd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "defragd.selectorLabels" -}}
app: gpu-descheduler-webhook
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "defragd.labels" -}}
{{ include "defragd.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: descheduler
app.kubernetes.io/part-of: hami
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "defragd.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "defragd.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "defragd.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Names the daemon itself uses; fixed, because replicas of all versions must agree on them. */}}
{{- define "defragd.secretName" -}}gpu-descheduler-webhook-tls{{- end -}}
{{- define "defragd.leaseName" -}}gpu-descheduler{{- end -}}
{{- define "defragd.webhookName" -}}scheduling.hami.placement.com{{- end -}}

{{/* The daemon's configuration: built-in defaults, then what the values say. */}}
{{- define "defragd.config" -}}
{{- $hami := dict "namespace" .Values.hami.namespace "deviceConfigMap" .Values.hami.deviceConfigMap -}}
{{- with .Values.hami.metrics }}{{- $_ := set $hami "metrics" . }}{{- end -}}
{{- $base := dict "mode" .Values.mode "hami" $hami "api" (dict "writes" .Values.api.writes "reads" .Values.api.reads) "certificates" (dict "managed" (not .Values.webhook.certManager.enabled)) -}}
{{- toYaml (mergeOverwrite $base (deepCopy .Values.config)) -}}
{{- end -}}
