{{- /* Names of the objects: the release's name, with capcard-sched appended unless it contains that. */ -}}
{{- define "capcard-sched.fullname" -}}
{{- if contains "capcard-sched" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-capcard-sched" (.Release.Name | trunc 36 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- /* A JSON object with the list of scheduler names; templates can only return text. */ -}}
{{- define "capcard-sched.schedulerNames" -}}
{{- if kindIs "slice" .Values.custom.scheduler_name -}}
{{- dict "names" .Values.custom.scheduler_name | toJson -}}
{{- else -}}
{{- dict "names" (list (.Values.custom.scheduler_name | default "capcard-sched")) | toJson -}}
{{- end -}}
{{- end -}}

{{- /* The Lease: as the scheduler itself would name it (Options.lease_name). */ -}}
{{- define "capcard-sched.lease" -}}
{{- $given := join "-" (sortAlpha (include "capcard-sched.schedulerNames" . | fromJson).names) -}}
{{- if and (le (len $given) 253) (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" $given) -}}
{{- $given -}}
{{- else -}}
{{- $plain := regexReplaceAll "[^a-z0-9]+" $given "-" | trimAll "-" | trunc 200 | trimAll "-" -}}
{{- printf "%s-%s" $plain (sha256sum $given | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- /* Takes (list $ suffix): the labels of an object of the component with that suffix; "" is the scheduler. */ -}}
{{- define "capcard-sched.labels" -}}
{{- $suffix := index . 1 -}}
{{- with index . 0 -}}
app: {{ include "capcard-sched.fullname" . }}{{ $suffix }}
app.kubernetes.io/name: capcard-sched
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.custom.common_labels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* "true" when the controllers are part of the release, else "". */ -}}
{{- define "capcard-sched.controllers" -}}
{{- if and .Values.custom.controller_enable (eq .Values.custom.mode "standalone") }}true{{ end -}}
{{- end -}}
