{{- /* Takes (list $ values-prefix suffix): the template of a Deployment up to its containers. */ -}}
{{- define "capcard-sched.podTemplate" -}}
{{- $prefix := index . 1 -}}
{{- $suffix := index . 2 -}}
{{- with index . 0 -}}
{{- $custom := .Values.custom -}}
metadata:
  labels:
    {{- include "capcard-sched.labels" (list . $suffix) | nindent 4 }}
    {{- with get $custom (printf "%s_podLabels" $prefix) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "capcard-sched.fullname" . }}{{ $suffix }}
  automountServiceAccountToken: true
  {{- with .Values.basic.image_pull_secret }}
  imagePullSecrets:
  - name: {{ . }}
  {{- end }}
  {{- with get $custom (printf "%s_priority_class" $prefix) }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: 10
  topologySpreadConstraints:
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        app: {{ include "capcard-sched.fullname" . }}{{ $suffix }}
  {{- with get $custom (printf "%s_ns" $prefix) | default $custom.default_ns }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with get $custom (printf "%s_affinity" $prefix) | default $custom.default_affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with get $custom (printf "%s_tolerations" $prefix) | default $custom.default_tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with get $custom (printf "%s_sc" $prefix) }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "capcard-sched.image" -}}
{{- with .Values.basic -}}
image: {{ printf "%s%s:%s" (.image_registry | empty | ternary "" (printf "%s/" .image_registry)) .scheduler_image_name (coalesce .image_tag_version .scheduler_image_tag_version .controller_image_tag_version .admission_image_tag_version $.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .image_pull_policy }}
{{- end }}
{{- end -}}

{{- /* Takes (list $ values-prefix port): probes, resources and security context of a container; port healthz by default. */ -}}
{{- define "capcard-sched.container" -}}
{{- $prefix := index . 1 -}}
{{- $port := "healthz" -}}
{{- if gt (len .) 2 -}}
{{- $port = index . 2 -}}
{{- end -}}
{{- with (index . 0).Values.custom -}}
env:
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: metadata.namespace
{{- if eq $prefix "web" }}
{{- with .web_ledger_secret }}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: password
{{- end }}
{{- end }}
livenessProbe:
  httpGet:
    path: /healthz
    port: {{ $port }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: /readyz
    port: {{ $port }}
  periodSeconds: 5
  timeoutSeconds: 5
{{- with get . (printf "%s_resources" $prefix) }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with get . (printf "%s_main_csc" $prefix) }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}
