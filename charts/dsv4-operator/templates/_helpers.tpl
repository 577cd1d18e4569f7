{{- define "dsv4-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Immutable. The name is fixed: network policies of engines select the operator by it. */}}
{{- define "dsv4-operator.selectorLabels" -}}
app.kubernetes.io/name: dsv4-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of an object, common ones first so that none of ours can be replaced. */}}
{{- define "dsv4-operator.labels" -}}
{{- $own := dict
      "app.kubernetes.io/name" "dsv4-operator"
      "app.kubernetes.io/instance" .Release.Name
      "app.kubernetes.io/component" "operator"
      "app.kubernetes.io/part-of" "dsv4"
      "app.kubernetes.io/version" .Chart.AppVersion
      "app.kubernetes.io/managed-by" .Release.Service
      "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- mergeOverwrite (dict) .Values.commonLabels $own | toYaml -}}
{{- end -}}

{{- define "dsv4-operator.podLabels" -}}
{{- $own := dict
      "app.kubernetes.io/name" "dsv4-operator"
      "app.kubernetes.io/instance" .Release.Name
      "app.kubernetes.io/component" "operator"
      "app.kubernetes.io/part-of" "dsv4" -}}
{{- mergeOverwrite (dict) .Values.commonLabels .Values.podLabels $own | toYaml -}}
{{- end -}}

{{- define "dsv4-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "dsv4-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "dsv4-operator.image" -}}
{{- $image := .Values.image -}}
{{- $repository := required "image.repository is required: build images/operator, push it to your registry, and name it here" $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The value of --namespaces. The operator's own is written as a variable, so that a copy in another namespace is right. */}}
{{- define "dsv4-operator.namespaces" -}}
{{- $names := list -}}
{{- range .Values.watchNamespaces -}}
{{- $names = append $names (eq . $.Release.Namespace | ternary "$(POD_NAMESPACE)" .) -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* Not empty when the webhook is on. */}}
{{- define "dsv4-operator.webhook" -}}
{{- if eq (toString .Values.webhook.enabled) "auto" -}}
{{- if not .Values.watchNamespaces -}}on{{- end -}}
{{- else if .Values.webhook.enabled -}}on{{- end -}}
{{- end -}}

{{/* Name of what the webhook has cluster-wide. With the namespace, so that releases in several do not collide. */}}
{{- define "dsv4-operator.webhookName" -}}
{{- printf "%s.%s" (include "dsv4-operator.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "dsv4-operator.subject" -}}
- kind: ServiceAccount
  name: {{ include "dsv4-operator.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
