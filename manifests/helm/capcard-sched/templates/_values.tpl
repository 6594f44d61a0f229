{{- /* Fails for values whose loss would change decisions, and with strictValues for unknown ones. */ -}}
{{- define "capcard-sched.checkValues" -}}
{{- $custom := .Values.custom -}}
{{- if $custom.agent_scheduler_enable -}}
{{- fail "custom.agent_scheduler_enable: true is not supported: the pods of the agent scheduler would stay pending; accepted: false" -}}
{{- end -}}
{{- range $name := list "scheduler_sharding_mode" "agent_scheduler_sharding_mode" -}}
{{- $mode := get $custom $name | default "none" -}}
{{- if and (or (eq $name "scheduler_sharding_mode") $custom.agent_scheduler_enable) (ne (toString $mode) "none") -}}
{{- fail (printf "custom.%s: %v is not supported: without shards, pods are bound to nodes of other schedulers; accepted: none" $name $mode) -}}
{{- end -}}
{{- end -}}
{{- $unknown := (include "capcard-sched.unusedValues" . | fromJson).unknown -}}
{{- if and .Values.strictValues $unknown -}}
{{- fail (printf "strictValues: %s" (join "; " $unknown)) -}}
{{- end -}}
{{- end -}}

{{- /* A JSON object with the lists `foreign` (values without effect, with the reason) and `unknown` (with the nearest name). */ -}}
{{- define "capcard-sched.unusedValues" -}}
{{- $known := .Files.Get "files/known-values.yaml" | fromYaml -}}
{{- $rules := .Files.Get "files/foreign-values.yaml" | fromYamlArray -}}
{{- $foreign := list -}}
{{- $unknown := list -}}
{{- range $section := list "" "basic" "custom" -}}
{{- $names := get $known ($section | default "top") -}}
{{- range $name, $value := ($section | empty | ternary $.Values (get $.Values $section | default dict)) -}}
{{- if and (not (has $name $names)) (not (kindIs "invalid" $value)) -}}
{{- $path := $section | empty | ternary $name (printf "%s.%s" $section $name) -}}
{{- $reason := "" -}}
{{- range $rules -}}
{{- if and (not $reason) (eq .section $section) (regexMatch (printf "^(%s)$" .pattern) $name) -}}
{{- $reason = .reason -}}
{{- end -}}
{{- end -}}
{{- if $reason -}}
{{- $foreign = append $foreign (printf "%s: %s" $path $reason) -}}
{{- else -}}
{{- $near := include "capcard-sched.nearest" (list $name $names) -}}
{{- $unknown = append $unknown (printf "unknown value %s%s" $path ($near | empty | ternary "" (printf "; did you mean %s?" ($section | empty | ternary $near (printf "%s.%s" $section $near))))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "foreign" $foreign "unknown" $unknown | toJson -}}
{{- end -}}

{{- /* Takes (list name names): the name with the most pairs of letters in common, "" if less than 60 % are. */ -}}
{{- define "capcard-sched.nearest" -}}
{{- $name := index . 0 -}}
{{- $best := "" -}}
{{- $most := 59 -}}
{{- range $candidate := index . 1 -}}
{{- $pairs := 0 -}}
{{- range $place := until (sub (len $name) 1 | int) -}}
{{- if contains (substr $place (add $place 2 | int) $name) $candidate -}}
{{- $pairs = add $pairs 1 -}}
{{- end -}}
{{- end -}}
{{- $share := div (mul 200 $pairs) (max 1 (sub (add (len $name) (len $candidate)) 2)) -}}
{{- if gt $share $most -}}
{{- $most = $share -}}
{{- $best = $candidate -}}
{{- end -}}
{{- end -}}
{{- $best -}}
{{- end -}}
